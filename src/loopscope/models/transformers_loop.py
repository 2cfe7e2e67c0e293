"""Any causal language model of transformers looped over a span of its layers, as an object: `loop_layers`.

    H_0 = layers[0 … start−1](embedding),   H_{t+1} = layers[start … end](H_t),
    logits_t = head(norm(layers[end+1 …](H_t)))

No architecture is written again. Every part runs through the model's own `forward`, in a copy that shares its weights
and in which each layer runs or passes its input on, as it is told (`Passage`): masks, rotary positions, sliding
windows and whatever else the layers of an architecture are given come from that call, and so do the last norm, the
head and what follows it (softcaps, scales of logits). The user's model is left alone.

Shapes: B rows, S positions, D hidden width, V vocabulary, N selected positions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from loopscope.errors import LoopscopeError
from loopscope.models.base import LoopedModule
from loopscope.models.batch import Batch
from loopscope.models.protocol import BodyAndHead, Context, select


class Passage:
    """What one forward pass does: which layers run, what enters where, and what is read.

    Attributes:
        running: the layers that run; all others pass their input on.
        entering: put in place of the input of the first running layer, or of the last layer's output if none runs.
        after: the layer whose output is read, −1 for the input of the first.
        hidden: put in place of the head's input; the head runs only then.
        found: what was read, the head's input where `after` is None.
        tuples: whether each layer returns a tuple, learnt from a pass in which all of them run.
    """

    def __init__(self) -> None:
        self.tuples: dict[int, bool] = {}
        self.set()

    def set(
        self, running: range = range(0), entering: Any = None, after: int | None = None, hidden: Any = None
    ) -> None:
        """Make ready for a pass, or idle."""
        self.running, self.entering, self.after, self.hidden = running, entering, after, hidden
        self.found: Any = None


class PassingLayer(nn.Module):
    """A layer that runs or passes on, as its passage says; without its layer, it can only pass on."""

    def __init__(self, index: int, count: int, layer: nn.Module | None, passage: Passage) -> None:
        super().__init__()
        self.index, self.count, self.passage = index, count, passage
        # What a model reads off its layers while it calls them (attention_type and the like).
        plain = (str, int, float, bool, type(None))
        self.facts = {name: value for name, value in vars(layer).items() if isinstance(value, plain)} if layer else {}
        self.layer = layer

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts and name not in ("training",):
            return facts[name]
        try:
            return super().__getattr__(name)
        except AttributeError:
            layer = self._modules.get("layer")
            if layer is None:
                raise
            return getattr(layer, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's output, or its input."""
        state, args, kwargs = (args[0], args[1:], kwargs) if args else (kwargs.pop("hidden_states"), (), kwargs)
        passage, index = self.passage, self.index
        running = passage.running
        if index == 0 and passage.after == -1:
            passage.found = state
        if passage.entering is not None and index == running.start:
            state = passage.entering
        if index in running:
            assert self.layer is not None
            made = self.layer(state, *args, **kwargs)
            passage.tuples[index] = isinstance(made, tuple)
            state = made[0] if isinstance(made, tuple) else made
        if passage.entering is not None and index == self.count - 1 and running.start == self.count:
            state = passage.entering
        if index == passage.after:
            passage.found = state
        return (state,) if passage.tuples[index] else state


class PassingHead(nn.Module):
    """The head, which notes its input and runs only where another is put in its place."""

    def __init__(self, head: nn.Module, passage: Passage) -> None:
        super().__init__()
        self.inner, self.passage = head, passage

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["inner"], name)

    def forward(self, hidden: Any) -> Any:
        """Logits of what was put in place, or a slice of the input."""
        if self.passage.hidden is not None:
            return self.inner(self.passage.hidden)
        if self.passage.after is None:
            self.passage.found = hidden
        return hidden[..., :1]


class SharedEmbedding(nn.Module):
    """The embedding of another module, in the dtype asked for; its table is neither copied nor cast."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.__dict__["table"] = embedding
        self.dtype: torch.dtype | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedEmbedding:
        return SharedEmbedding(self.__dict__["table"])

    def forward(self, ids: Tensor) -> Tensor:
        """Embedded tokens."""
        found: Tensor = self.__dict__["table"](ids)
        return found if self.dtype is None else found.to(self.dtype)


class _KeepWide(TorchFunctionMode):
    """Code that computes norms and softmax "in float32" does so in float64 where it is given float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and getattr(args[0], "dtype", None) is torch.float64:
            name = getattr(func, "__name__", "")
            if name in ("float", "half", "bfloat16", "type_as"):
                return args[0]
            args = [torch.float64 if _is_narrow(x) else x for x in args]
            kwargs = {key: torch.float64 if _is_narrow(x) else x for key, x in kwargs.items()}
        return func(*args, **kwargs)


def _is_narrow(value: Any) -> bool:
    return value in (torch.float32, torch.bfloat16, torch.float16) if isinstance(value, torch.dtype) else False


class TransformersLoop(LoopedModule):
    """A model of transformers whose layers start … end are the loop; made by `loop_layers`."""

    family = "loop"
    trained_depth = 1

    def __init__(
        self, model: Any, start: int, end: int, *, layers: str | None, name: str | None, tokenizer: Any
    ) -> None:
        super().__init__()
        _require_causal(model)
        self.config = {"layers": [start, end], "model": model.config}
        config = model.config.get_text_config()
        where, head = layers or _layers_name(model), model.get_output_embeddings()
        count = len(model.get_submodule(where))
        if not 0 <= start <= end < count:
            raise LoopscopeError(
                f"layers {start}-{end} are not a span of this {count}-layer model; choose within 0-{count - 1}"
            )
        self.start, self.end, self.count = start, end, count
        self.name = name or f"{type(model).__name__}:{start}-{end}"
        self.boundary = f"the output of layers {start}-{end}, before the layers that follow"
        self.hidden_size, self.vocabulary_size = int(config.hidden_size), int(head.weight.shape[0])
        self.max_positions = getattr(config, "max_position_embeddings", None)
        eos = getattr(config, "eos_token_id", None)
        self.eos_ids = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        self.tokenizer = tokenizer
        self.model = _twin(model)
        _install(self.model, where, count)
        self._learn()
        self.coda = _coda(self.model, where, end)
        self.prepare()

    @property
    def dtype(self) -> torch.dtype:
        """The arithmetic of embed and step: that of the head."""
        found: torch.dtype = self.model.get_output_embeddings().weight.dtype
        return found

    @torch.no_grad()
    def _learn(self) -> None:
        """One token through all layers: whether they run one after the other, and what they return."""
        found = self._pass(self.model, _one_token(self.device), running=range(self.count), after=self.count - 1).found
        if sorted(self.model.passage.tuples) != list(range(self.count)) or getattr(found, "ndim", 0) != 3:
            raise LoopscopeError(
                f"{self.name} does not pass one state [rows, positions, width] from layer to layer; "
                "loop_layers needs a model that does"
            )

    def _pass(self, model: Any, ids_BS: Tensor, **told: Any) -> _Passed:
        """One call of a copy's own forward; the passage is idle again afterwards, and holds nothing."""
        passage: Passage = model.passage
        passage.set(**told)
        wide = model.get_output_embeddings().weight.dtype is torch.float64
        try:
            with _KeepWide() if wide else nullcontext():
                made = model(input_ids=ids_BS, attention_mask=torch.ones_like(ids_BS), use_cache=False)
            return _Passed(passage.found, made)
        finally:
            passage.set()

    def embed(self, batch: Batch) -> Context:
        """H_0 is the state before the span: the layers ahead of it run once."""
        self.check_batch(batch)
        if batch.padding == "left":
            raise LoopscopeError(f"{self.name} needs padding on the right (Batch.from_rows pads so)")
        if batch.position_ids is not None:
            raise LoopscopeError(f"{self.name} counts positions from 0; leave position_ids out")
        batch = batch.to(self.device)
        if batch.initial_state is not None:
            return Context(batch.initial_state.to(self.dtype), batch)
        state = self._pass(self.model, batch.input_ids, running=range(self.start), after=self.start - 1).found
        return Context(state, batch)

    def step(self, state: Tensor, context: Context) -> Tensor:
        """The span once."""
        span = range(self.start, self.end + 1)
        found: Tensor = self._pass(
            self.model, context.batch.input_ids, running=span, entering=state, after=self.end
        ).found
        return found

    def readout(
        self,
        state: Tensor,
        positions: Tensor | None = None,
        dtype: torch.dtype | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """Logits through the layers after the span; without a context, token ids that layers may read are 0."""
        return self.body_and_head(dtype, context)(state, positions)

    def body_and_head(self, dtype: torch.dtype | None = None, context: Context | None = None) -> BodyAndHead:
        """The readout as the layers after the span with the last norm, and the head with what follows it."""
        after = range(self.end + 1, self.count)

        def body(state: Tensor, positions: Tensor | None) -> Tensor:
            ids = torch.zeros(state.shape[:2], dtype=torch.int64, device=state.device)
            ids = ids if context is None else context.batch.input_ids
            entering = state if dtype is None else state.to(dtype)
            return select(self._pass(self._coda_in(dtype), ids, running=after, entering=entering).found, positions)

        def head(hidden: Tensor) -> Tensor:
            # A row of its own: what follows the head acts on each position by itself.
            row = hidden.unsqueeze(0) if hidden.ndim == 2 else hidden
            made: Tensor = self._pass(self._coda_in(dtype), _one_token(hidden.device), hidden=row).made.logits
            return made[0] if hidden.ndim == 2 else made

        return BodyAndHead(body, head, self.vocabulary_size)

    def _coda_in(self, dtype: torch.dtype | None) -> Any:
        coda: Any = self.in_dtype(self.coda, dtype)
        if coda is not self.coda:
            coda.get_input_embeddings().dtype = dtype
        return coda


def _one_token(device: torch.device) -> Tensor:
    return torch.zeros(1, 1, dtype=torch.int64, device=device)


class _Passed(NamedTuple):
    """What was read on the way, and what the model returned."""

    found: Any
    made: Any


def loop_layers(
    model: Any,
    start: int,
    end: int,
    *,
    tokenizer: Any = None,
    name: str | None = None,
    layers: str | None = None,
) -> TransformersLoop:
    """Loop layers start … end (both included, counted from 0) of a causal language model of transformers.

    The result is a looped model like any other: `ls.measure(ls.loop_layers(model, 10, 20), …)`. Depth 1 is the model
    itself. It shares the weights of `model` and leaves it as it is: its mode, its hooks and `requires_grad` are not
    touched. Dropout and caches are off. Weights, configuration, classes and span identify a run.

    Args:
        model: as `AutoModelForCausalLM.from_pretrained` returns it.
        start: the first layer of the loop.
        end: the last one.
        tokenizer: of benchmarks that are text.
        name: what runs and tables call it; the class and the span where left out.
        layers: the path of the layers inside the model, "model.layers" say, where it is not found.
    """
    return TransformersLoop(model, start, end, layers=layers, name=name, tokenizer=tokenizer)


def _require_causal(model: Any) -> None:
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if not isinstance(model, nn.Module) or not hasattr(model, "config") or head is None:
        raise LoopscopeError(
            f"loop_layers takes a causal language model of transformers (AutoModelForCausalLM.from_pretrained), "
            f"not a {type(model).__name__}{'' if head is not None else ', which has no language-model head'}"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise LoopscopeError(f"{type(model).__name__} is an encoder with a decoder; loop_layers needs a decoder alone")
    if getattr(model, "is_quantized", False) or len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        raise LoopscopeError("loop_layers needs weights that are not quantized, all on one device")


def _layers_name(model: Any) -> str:
    """The list of as many modules as the configuration has layers."""
    count = model.config.get_text_config().num_hidden_layers
    found = [
        name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if not found:
        raise LoopscopeError(f"no list of {count} layers in {type(model).__name__}; name it with layers='model.layers'")
    shortest: str = min(found, key=lambda name: name.count("."))
    return shortest


def _twin(model: Any) -> Any:
    """The same modules, with parameters of their own that share the weights' memory."""
    memo: dict[int, Any] = {
        id(weight): nn.Parameter(weight.detach(), requires_grad=False) for weight in model.parameters()
    }
    memo |= {id(buffer): buffer for buffer in model.buffers()}
    twin = copy.deepcopy(model, memo).eval()
    # Fused kernels take neither every dtype nor derivatives; these ways agree with them to rounding.
    if getattr(twin.config, "_attn_implementation", None) not in (None, "eager", "sdpa"):
        twin.set_attn_implementation("eager")
    if hasattr(twin, "set_experts_implementation"):
        twin.set_experts_implementation("eager")
    return twin


def _install(twin: Any, where: str, count: int) -> None:
    """Every layer and the head of a copy under the control of one passage."""
    twin.passage = Passage()
    layers = twin.get_submodule(where)
    for index in range(count):
        layers[index] = PassingLayer(index, count, layers[index], twin.passage)
    _replace(twin, twin.get_output_embeddings(), lambda head: PassingHead(head, twin.passage))


def _coda(model: Any, where: str, end: int) -> Any:
    """A second copy, of the same parameters, that cannot do more than a readout: its weights are those of one."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    coda = copy.deepcopy(model, memo)
    for layer in coda.get_submodule(where)[: end + 1]:
        layer.layer = None
    shared = model.get_input_embeddings()
    _replace(coda, coda.get_input_embeddings(), lambda _: SharedEmbedding(shared))
    return coda


def _replace(model: nn.Module, old: nn.Module, make: Callable[[nn.Module], nn.Module]) -> None:
    new = make(old)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child is old and module is not new:
                setattr(module, name, new)
