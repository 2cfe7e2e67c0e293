"""Any causal language model of transformers looped over a span of its layers, as an object: `loop_layers`.

    H_0 = layers[0 … start−1](embedding),   H_{t+1} = layers[start … end](H_t),
    logits_t = head(norm(layers[end+1 …](H_t)))

No architecture is written again. Every part runs through the model's own `forward`, in a copy that shares its weights
and in which each layer runs or passes its input on, as a `Passage` says: masks, rotary positions, sliding
windows and whatever else the layers of an architecture are given come from that call, and so do the last norm, the
head and what follows it (softcaps, scales of logits). The user's model is left alone.

Shapes: B rows, S positions, D hidden width, V vocabulary, N selected positions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

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
        hidden: put in place of the head's input.
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

    def at_head(self, _: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """A hook: the head reads what was put in place of its input, or one position of it, which costs nothing."""
        if self.hidden is not None:
            return (self.hidden,)
        if self.after is None:
            self.found = given[0]
        return (given[0][:1, :1],)


class PassingLayer:
    """The `forward` of a layer that runs or passes on, as its passage says."""

    def __init__(self, index: int, count: int, forward: Callable[..., Any], passage: Passage) -> None:
        self.index, self.count, self.forward, self.passage = index, count, forward, passage

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's output, or its input."""
        state, args = (args[0], args[1:]) if args else (kwargs.pop("hidden_states"), ())
        passage, index = self.passage, self.index
        running = passage.running
        if index == 0 and passage.after == -1:
            passage.found = state
        if passage.entering is not None and index == running.start:
            state = passage.entering
        if index in running:
            made = self.forward(state, *args, **kwargs)
            passage.tuples[index] = isinstance(made, tuple)
            state = made[0] if isinstance(made, tuple) else made
        if passage.entering is not None and index == self.count - 1 and running.start == self.count:
            state = passage.entering
        if index == passage.after:
            passage.found = state
        return (state,) if passage.tuples[index] else state


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
        _install(self.model, where)
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
        token = Batch.of(torch.zeros(1, 1, dtype=torch.int64, device=self.device))
        found = self._pass(self.model, self._ids(token), running=range(self.count), after=self.count - 1)
        if sorted(self.model.passage.tuples) != list(range(self.count)) or getattr(found, "ndim", 0) != 3:
            raise LoopscopeError(
                f"{self.name} does not pass one state [rows, positions, width] from layer to layer; "
                "loop_layers needs a model that does"
            )

    def _pass(self, model: Any, given: Mapping[str, Tensor], **changes: Any) -> Any:
        """What one call of a copy's own forward read, or else its logits; the passage holds nothing afterwards."""
        passage: Passage = model.passage
        passage.set(**changes)
        (tokens,) = given.values()
        wide = model.get_output_embeddings().weight.dtype is torch.float64
        mask = torch.ones(tokens.shape[:2], dtype=torch.int64, device=tokens.device)
        try:
            with _KeepWide() if wide else nullcontext():
                made = model(**given, attention_mask=mask, use_cache=False)
            return passage.found if passage.hidden is None else made.logits
        finally:
            passage.set()

    def _ids(self, batch: Batch) -> dict[str, Tensor]:
        return {"input_ids": batch.input_ids}

    def _nothing(self, shape: Sequence[int], dtype: torch.dtype | None) -> dict[str, Tensor]:
        """Embedded tokens for a pass in which something else enters."""
        wide = (shape[0], shape[1], self.hidden_size)
        return {"inputs_embeds": torch.zeros(wide, dtype=dtype or self.dtype, device=self.device)}

    def embed(self, batch: Batch) -> Context:
        """H_0 is the state before the span: the layers ahead of it run once."""
        self.check_batch(batch, from_zero=True)
        batch = batch.to(self.device)
        if batch.initial_state is not None:
            return Context(batch.initial_state.to(self.dtype), batch)
        state = self._pass(self.model, self._ids(batch), running=range(self.start), after=self.start - 1)
        return Context(state, batch)

    def step(self, state: Tensor, context: Context) -> Tensor:
        """The span once."""
        span = range(self.start, self.end + 1)
        made: Tensor = self._pass(self.model, self._ids(context.batch), running=span, entering=state, after=self.end)
        return made

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Logits through the layers after the span."""
        return self.body_and_head(dtype)(state, positions)

    def body_and_head(self, dtype: torch.dtype | None = None) -> BodyAndHead:
        """The readout as the layers after the span with the last norm, and the head with what follows it."""
        after = range(self.end + 1, self.count)

        def coda() -> Any:
            return self.in_dtype(self.coda, dtype)

        def body(state: Tensor, positions: Tensor | None) -> Tensor:
            entering = state if dtype is None else state.to(dtype)
            return select(
                self._pass(coda(), self._nothing(state.shape, dtype), running=after, entering=entering), positions
            )

        def head(hidden: Tensor) -> Tensor:
            # A row of its own: what follows the head acts on each position by itself.
            row = hidden.unsqueeze(0) if hidden.ndim == 2 else hidden
            made: Tensor = self._pass(coda(), self._nothing((1, 1), dtype), hidden=row)
            return made[0] if hidden.ndim == 2 else made

        return BodyAndHead(body, head, self.vocabulary_size)


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
    if not isinstance(model, nn.Module) or head is None or getattr(model.config, "is_encoder_decoder", False):
        raise LoopscopeError(
            "loop_layers takes a causal language model of transformers (AutoModelForCausalLM.from_pretrained) with a "
            f"head and without an encoder, not a {type(model).__name__}"
        )
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


def _install(twin: Any, where: str) -> None:
    """Every layer and the head of a copy under the control of one passage."""
    twin.passage = Passage()
    layers = twin.get_submodule(where)
    for index, layer in enumerate(layers):
        layer.forward = PassingLayer(index, len(layers), layer.forward, twin.passage)
    twin.get_output_embeddings().register_forward_pre_hook(twin.passage.at_head)


def _coda(model: Any, where: str, end: int) -> Any:
    """A second copy, of the same parameters, without those that a readout does not use."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    coda = copy.deepcopy(model, memo)
    for layer in coda.get_submodule(where)[: end + 1]:
        layer._modules.clear()
    coda.set_input_embeddings(nn.Identity())
    return coda
