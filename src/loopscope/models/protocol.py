"""The looped model as the rest of loopscope sees it: embed, step, readout (Section 3 of the paper).

H_0 = embed(batch), H_{t+1} = step(H_t), logits_t = readout(H_t). Whatever implements `LoopedModel` can be
measured; `LoopedModule` supplies most of it to an `nn.Module`: a model of your own inherits from it and writes `embed`,
`step` and `readout`.

`step` and `readout` may know more than their state. What they ask for by the name of a parameter arrives as a keyword;
`walk` is the one place that gives it:

    step(state, context, *, depth)      the number of steps done before this one, 0 for the first
    step(state, context, *, carry)      what the model carries along next to the measured state; such a step returns
                                        (state, carry), and the first one is given None or `Context.carry`
    readout(state, positions, dtype, *, context)
    body_and_head(dtype, *, context)    the context of the rows that are read

A model may have an exit gate (`ExitGate`), which says how likely it is that a loop is the last, at every position:

    λ_t = sigmoid(gate(H_t)) at every position, for t = 1 … T, the depths of a budget

    "cdf"         p_t = λ_t · Π_{j<t} (1 − λ_j)  (the last p takes the remainder),   c_t = p_1 + … + p_t,
                  exit depth = the first t with c_t ≥ threshold, else T
    "threshold"   exit depth = the first t with λ_t > threshold, else T

The arithmetic of the gate is that of the logits given. A published policy runs in the model's dtype; in BF16 the
cumulative sum can round up to 1 before the last loop, so that "threshold 1" is not "the last loop". The same
decisions in float64 come from float64 logits (`gate.logits(state, torch.float64)`).

Whoever records decisions asks the model for its `exit_gate` (`exit_gate_of`) and needs to know nothing else of it.

Shapes: T loops, B rows, S positions, D hidden width, V vocabulary, N selected positions.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor, nn

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.layers.blocks import Fusing, Linear

if TYPE_CHECKING:
    from loopscope.models.checkpoint import TensorEntry


class AffineHead(NamedTuple):
    """Logits that are affine in the state: `state @ weight_VD.T + bias_V`."""

    weight_VD: Tensor
    bias_V: Tensor | None = None


@dataclass(frozen=True)
class BodyAndHead:
    """A readout as two maps, the last of them affine; calling it gives the logits.

    Whoever needs the logits of many positions takes the body once and the head a few positions at a time.

    Attributes:
        body: from a state [B, S, D] and positions [N, 2] to what the head reads, [N, D'].
        head: from some rows of that to their logits, [n, D'] → [n, V].
        vocabulary: V.
        matrix: gives the head's matrix [V, D'], where the head is a product with it and nothing else; None elsewhere.
    """

    body: Callable[[Tensor, Tensor | None], Tensor]
    head: Callable[[Tensor], Tensor]
    vocabulary: int
    matrix: Callable[[], Tensor] | None = None

    def __call__(self, state: Tensor, positions: Tensor | None = None) -> Tensor:
        """The logits."""
        return self.head(self.body(state, positions))


@dataclass(frozen=True)
class Context:
    """What stays fixed while one batch is stepped.

    Attributes:
        state: H_0, [B, S, D].
        batch: the batch it was made from.
        injection: what every step reads besides the state (Huginn's embedded input), [B, S, D].
        extra: the family's own; nobody else looks at it.
        carry: what the first step is given as `carry`, if it asks for that.
        rowwise: tensors [B, …] of the family's own that steps and readouts read, by name. A readout may be asked about
            some of the rows alone; state, batch, injection and these are cut to them, everything else is passed on.
    """

    state: Tensor
    batch: Batch
    injection: Tensor | None = None
    extra: Any = None
    carry: Any = None
    rowwise: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    def rows(self, index: slice | Tensor) -> Context:
        """The context of some of the rows: a slice, or their numbers."""
        return dataclasses.replace(
            self,
            state=self.state[index],
            batch=self.batch.rows(index),
            injection=None if self.injection is None else self.injection[index],
            rowwise={name: tensor[index] for name, tensor in self.rowwise.items()},
        )


@runtime_checkable
class LoopedModel(Protocol):
    """A model whose depth is how often one map is applied.

    Attributes:
        family: "ouro", "huginn", …
        name: what the user called it.
        hidden_size: D.
        vocabulary_size: V.
        trained_depth: the number of loops it was trained for.
        boundary: one phrase that says where in the model the state is taken.
        head: the affine head where logits are affine in the state, else None.
    """

    family: str
    name: str
    hidden_size: int
    vocabulary_size: int
    trained_depth: int
    boundary: str

    @property
    def head(self) -> AffineHead | None:
        """The affine head, or None where the readout is nonlinear."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""

    @property
    def dtype(self) -> torch.dtype:
        """The arithmetic of embed and step."""

    def embed(self, batch: Batch) -> Context:
        """H_0 and what every step needs besides the state."""

    def step(self, state: Tensor, context: Context, *args: Any, **kwargs: Any) -> Any:
        """H_{t+1} from H_t, [B, S, D] → [B, S, D]; may ask for `depth` and `carry`."""

    def readout(
        self,
        state: Tensor,
        positions: Tensor | None = None,
        dtype: torch.dtype | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Logits of a state: [B, S, V], or [N, V] at `positions` [N, 2] of (row, position); may ask for `context`.

        `dtype` is the arithmetic of the readout, the model's own when left out. TF32 is the caller's to
        switch off (`torch.backends.cuda.matmul.allow_tf32`).
        """

    def states(self, batch: Batch, depths: Iterable[int]) -> dict[int, Tensor]:
        """The states at the depths asked for, in one pass to the deepest; nothing else is kept."""


class LoopedModule(nn.Module):
    """An `nn.Module` that is a `LoopedModel` once it has `embed`, `step` and `readout`."""

    family: str = "custom"
    name: str = "custom"
    boundary: str = "the state between two steps"
    hidden_size: int
    vocabulary_size: int
    trained_depth: int
    max_positions: int | None = None
    unpadded: bool = False
    """Whether `embed` and `step` read `Batch.parts` and `Batch.position_ids`."""
    alike: bool = False
    """Whether `step` does the same at every depth, asks nothing of the device, and keeps nothing outside a cache."""
    eos_ids: tuple[int, ...] = ()
    tied: Mapping[str, str] = MappingProxyType({})
    """Parameters that are another one, by name; a checkpoint may leave them out."""
    ignored: frozenset[str] = frozenset()
    """Tensors a checkpoint may hold that nothing reads."""
    trained_clock: int | None = None
    """Steps after which a step that knows its time leaves what it was trained for; None where steps do not know it."""
    embed: Callable[..., Context]
    step: Callable[..., Any]
    readout: Callable[..., Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.prepared = False
        self._casts: dict[tuple[torch.dtype, bool], tuple[Any, nn.Module]] = {}

    @property
    def head(self) -> AffineHead | None:
        """The affine head, or None where the readout is nonlinear."""
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
        from loopscope.models.walk import Walk  # which imports this module

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
        by `layers.blocks.linear` alone, matrices stored in BF16 stay so for a float32
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
        """Refuses a batch that the model cannot run: unknown token ids, too many positions, parts that it would ignore.

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
        elif batch.parts is not None and not self.unpadded:
            problem = "it reads every row as one sequence; leave parts out"
        elif from_zero and batch.padding == "left":
            problem = "it needs padding on the right (Batch.from_rows pads so)"
        elif from_zero and batch.position_ids is not None and batch.parts is None:
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


@dataclass(frozen=True)
class ExitGate:
    """A model's exit gate and the policy of its checkpoint.

    Attributes:
        logits: the gate before its sigmoid: from a state [B, S, D] and the arithmetic (None for its own) to [B, S].
        threshold: the policy's own.
        budget: T; what is deeper does not count.
        rule: "cdf" or "threshold".
    """

    logits: Callable[[Tensor, torch.dtype | None], Tensor]
    threshold: float
    budget: int
    rule: Literal["cdf", "threshold"] = "cdf"

    def compared(self, gate_logits: Sequence[Tensor]) -> Tensor:
        """What the rule compares with its threshold, [..., T], from the logits at depths 1..T, each [...]."""
        if self.rule == "cdf":
            return torch.cumsum(exit_probabilities(gate_logits), dim=-1)
        return torch.sigmoid(torch.stack(list(gate_logits), dim=-1))

    def exit_depth(self, compared: Tensor, threshold: float | None = None) -> Tensor:
        """Where the policy stops (1..T), int64 [...]."""
        limit = self.threshold if threshold is None else threshold
        reached = compared >= limit if self.rule == "cdf" else compared > limit
        first = reached.to(torch.int64).argmax(dim=-1)
        return torch.where(reached.any(dim=-1), first + 1, reached.shape[-1])


def exit_gate_of(model: object) -> ExitGate | None:
    """The gate of a model that has one."""
    gate = getattr(model, "exit_gate", None)
    return gate if isinstance(gate, ExitGate) else None


def exit_probabilities(gate_logits: Sequence[Tensor]) -> Tensor:
    """p_t over the depths 1..T of one budget, [..., T], from the gate's logits at each, [...], in their own dtype.

    >>> exit_probabilities([torch.zeros(1)] * 3).tolist()
    [[0.5, 0.25, 0.25]]
    """
    stop = [torch.sigmoid(logits) for logits in gate_logits]
    remaining = torch.ones_like(stop[0])
    found = []
    for chance in stop[:-1]:
        found.append(chance * remaining)
        remaining = remaining * (1.0 - chance)
    return torch.stack([*found, remaining], dim=-1)


def state_at_exit(states: Sequence[Tensor], depth: Tensor) -> Tensor:
    """The states [B, S, D] at each position's own exit depth (1..T), from the states at depths 1..T."""
    stacked = torch.stack(list(states), dim=-2)
    index = (depth - 1)[..., None, None].expand(*depth.shape, 1, stacked.shape[-1])
    return stacked.gather(-2, index)[..., 0, :]
