"""What every looped model shares: one pass to the deepest state, inference preparation, readout arithmetic.

A model of your own inherits from `LoopedModule` and writes `embed`, `step` and `readout`; see
`protocol.LoopedModel` for what they return.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor, nn

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.layers.linear import Fusing, Linear
from loopscope.models.protocol import AffineHead, BodyAndHead, Context
from loopscope.models.walk import Walk

if TYPE_CHECKING:
    from loopscope.models.checkpoint import TensorEntry


class LoopedModule(nn.Module):
    """An `nn.Module` that is a `LoopedModel` once it has `embed`, `step` and `readout`."""

    family: str = "custom"
    name: str = "custom"
    boundary: str = "the state between two steps"
    hidden_size: int
    vocabulary_size: int
    trained_depth: int
    max_positions: int | None = None
    shares_context: bool = False
    """Whether `embed` and `step` heed `Batch.segments` and `Batch.position_ids`; `attention.surroundings` does."""
    unpadded: bool = False
    """Whether they heed `Batch.parts` besides; `attention.surroundings` and `attention.attend` do."""
    alike: bool = False
    """Whether `step` does the same at every depth, asks nothing of the device, and keeps nothing outside a cache."""
    eos_ids: tuple[int, ...] = ()
    tied: Mapping[str, str] = MappingProxyType({})
    """Parameters that are another one, by name; a checkpoint may leave them out."""
    ignored: frozenset[str] = frozenset()
    """Tensors a checkpoint may hold that nothing reads."""
    trained_clock: int | None = None
    """Steps after which a step that knows its time leaves what it was trained for; None where steps do not know it."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared = False
        self._casts: dict[tuple[torch.dtype, bool], tuple[Any, nn.Module]] = {}

    def embed(self, batch: Batch) -> Context:
        """H_0 and what every step needs besides the state."""
        raise NotImplementedError(f"{type(self).__name__} has no embed")

    def step(self, state: Tensor, context: Context, *args: Any, **kwargs: Any) -> Any:
        """H_{t+1} from H_t."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    def readout(
        self,
        state: Tensor,
        positions: Tensor | None = None,
        dtype: torch.dtype | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Logits of a state."""
        raise NotImplementedError(f"{type(self).__name__} has no readout")

    @property
    def head(self) -> AffineHead | None:
        """The affine head, or None where the readout is nonlinear."""
        return None

    def body_and_head(self, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> BodyAndHead | None:
        """The readout in two: what comes before its affine head, and the head; None where it is not made so."""
        return None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The arithmetic of embed and step."""
        return next(self.parameters()).dtype

    @torch.no_grad()
    def states(self, batch: Batch, depths: Iterable[int]) -> dict[int, Tensor]:
        """The states at the depths asked for; depth 0 is H_0."""
        wanted = sorted(set(depths))
        if not wanted or wanted[0] < 0:
            raise LoopscopeError(f"depths must be integers of at least 0, and at least one, not {wanted}")
        walk = Walk.of(self, batch)
        return {depth: walk.to(depth).state for depth in wanted}

    def arrange(self, tensors: Mapping[str, TensorEntry]) -> Mapping[str, TensorEntry]:
        """A checkpoint's tensors under the names of the model's parameters, where it may store them otherwise."""
        return tensors

    def parameter_dtype(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """The dtype of a parameter in a model of `dtype`; some parts are never rounded to 16 bits."""
        return dtype

    def tie(self) -> None:
        """Makes tied parameters one parameter again after a checkpoint was assigned."""
        for name, source in self.tied.items():
            owner, _, leaf = name.rpartition(".")
            setattr(self.get_submodule(owner), leaf, self.get_parameter(source))

    def prepare(self) -> None:
        """Makes the loaded model ready for inference: tied, frozen, in eval mode, projections joined."""
        self.tie()
        self.eval()
        self.requires_grad_(False)
        for module in _fusing(self):
            module.fuse()
        self._casts.clear()
        self.prepared = True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LoopedModule:
        self._casts.clear()
        for module in _fusing(self):
            module.joined = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.prepared:
            # Moving or casting gives every parameter storage of its own; tie and join them anew.
            self.prepare()
        return self

    def in_dtype(self, modules: nn.Module, dtype: torch.dtype | None, *, mixes: bool = False) -> nn.Module:
        """A readout's modules with weights in the readout's dtype: cast once and kept while they are frozen.

        For the `readout` of a model of your own: one set of modules per model. Where `mixes` says that they multiply
        by `layers.linear.linear` alone, matrices stored in BF16 stay so for a float32
        readout on devices that take such products apart (`kernels.product`); everything else is cast.
        """
        parameters = list(modules.parameters())
        if dtype is None or all(parameter.dtype == dtype for parameter in parameters):
            return modules
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
            return _copy_in(modules, dtype, keep_graph=True)
        from loopscope.kernels.product import splits_apply  # loads Triton

        stamp = [(weight.data_ptr(), None if weight.is_inference() else weight._version) for weight in parameters]
        mixed = mixes and dtype == torch.float32 and splits_apply(parameters[0].device)
        held = self._casts.get((dtype, mixed))
        if held is None or held[0] != stamp:
            # Inside a function transform every result belongs to the transform; what is kept must outlive it.
            with torch._C._DisableFuncTorch():
                held = (stamp, _copy_in(modules, dtype, mixed=mixed))
            self._casts[dtype, mixed] = held
        return held[1]

    def forget_casts(self) -> None:
        """Drops what `in_dtype` kept: weights may change in ways that leave no trace (`weight.data`, CUDA graphs)."""
        from loopscope.kernels.product import forget_halves  # loads Triton

        self._casts.clear()
        forget_halves(self.parameters())

    def check_batch(self, batch: Batch, *, from_zero: bool = False) -> None:
        """Refuses a batch that the model cannot run: unknown token ids, too many positions, segments it would ignore.

        For the `embed` of a model of your own; `from_zero` where its readout counts the positions of a row from 0.
        """
        assert batch.highest_id is not None
        assert batch.reach is not None
        vocabulary, positions, given = self.vocabulary_size, self.max_positions, batch.initial_state
        problem = None
        if batch.highest_id >= vocabulary:
            problem = f"token id {batch.highest_id} is outside its vocabulary of {vocabulary}; is this its tokenizer?"
        elif positions is not None and batch.reach > positions:
            problem = f"{batch.reach} tokens are more than its {positions} positions; shorten the text"
        elif (batch.segments is not None and not self.shares_context) or (
            batch.parts is not None and not self.unpadded
        ):
            problem = "it reads every row as one sequence; leave segments and parts out"
        elif from_zero and batch.padding == "left":
            problem = "it needs padding on the right (Batch.from_rows pads so)"
        elif from_zero and batch.position_ids is not None and not batch.is_packed:
            problem = "it counts positions from 0; leave position_ids out"
        elif given is not None and given.shape[-1] != self.hidden_size:
            problem = f"initial_state is {given.shape[-1]} wide but its state {self.hidden_size}"
        if problem is not None:
            raise LoopscopeError(f"{self.name}: {problem}")


def needs_elementary_operations(state: Tensor) -> bool:
    """Whether a readout must be built of operations that autograd differentiates to any order.

    So in grad mode and in forward mode, where the fused kernels stop at the first derivative. A tensor-like object
    of another kind brings its own rules for whole operations and gets those.
    """
    return type(state) is Tensor and (torch.is_grad_enabled() or forward_mode._current_level >= 0)


def _fusing(module: nn.Module) -> Iterator[Fusing]:
    return (inner for inner in module.modules() if isinstance(inner, Fusing))


# Kept casts outlive the call that makes them; as inference tensors they would be useless to a later gradient.
@torch.inference_mode(False)
def _copy_in(modules: nn.Module, dtype: torch.dtype, *, keep_graph: bool = False, mixed: bool = False) -> nn.Module:
    """A twin in `dtype`; a mixed one shares the BF16 matrices of linear layers."""
    linears = [layer for layer in modules.modules() if isinstance(layer, Linear) and mixed]
    shared = {id(w) for linear in linears if linear.weight.dtype == torch.bfloat16 for w in linear.parameters()}
    memo: dict[int, Any] = {id(module.joined): module.joined if mixed else None for module in _fusing(modules)}
    for weight in modules.parameters():
        cast = weight.to(dtype) if keep_graph else nn.Parameter(weight.detach().to(dtype), requires_grad=False)
        memo[id(weight)] = weight if id(weight) in shared else cast
    twin = copy.deepcopy(modules, memo)
    if not keep_graph and not mixed:
        for module in _fusing(twin):
            module.fuse()
    return twin
