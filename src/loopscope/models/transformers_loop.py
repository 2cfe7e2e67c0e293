"""Any causal language model of transformers looped over a span of its layers: `loop_layers`.

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
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from loopscope.errors import LoopscopeError, setting
from loopscope.models.batch import Batch, select
from loopscope.models.protocol import BodyAndHead, Context, LoopedModule


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

    def layer(self, index: int, last: int, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A layer's output, or its input where it does not run."""
        state, args = (args[0], args[1:]) if args else (kwargs.pop("hidden_states"), ())
        running = self.running
        if index == 0 and self.after == -1:
            self.found = state
        if self.entering is not None and index == running.start:
            state = self.entering
        if index in running:
            made = forward(state, *args, **kwargs)
            self.tuples[index] = isinstance(made, tuple)
            state = made[0] if isinstance(made, tuple) else made
        if self.entering is not None and index == last and running.start > last:
            state = self.entering
        if index == self.after:
            self.found = state
        return (state,) if self.tuples[index] else state


class _KeepWide(TorchFunctionMode):
    """Code that computes norms and softmax "in float32" does so in float64 where it is given float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and getattr(args[0], "dtype", None) is torch.float64:
            if getattr(func, "__name__", "") in ("float", "half", "bfloat16", "type_as"):
                return args[0]
            args = [torch.float64 if _is_narrow(x) else x for x in args]
            kwargs = {key: torch.float64 if _is_narrow(x) else x for key, x in kwargs.items()}
        return func(*args, **kwargs)


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in (torch.float32, torch.bfloat16, torch.float16)


class TransformersLoop(LoopedModule):
    """A model of transformers whose layers start … end are the loop; made by `loop_layers`."""

    family = "loop"
    trained_depth = 1

    def __init__(self, model: Any, start: int, end: int, layers: str | None) -> None:
        super().__init__()
        where = layers or _layers_name(model)
        config, count = model.config.get_text_config(), len(model.get_submodule(where))
        if not 0 <= start <= end < count:
            raise LoopscopeError(
                f"layers {start}-{end} are not a span of this {count}-layer model; choose within 0-{count - 1}"
            )
        self.config = {"layers": [start, end], "model": model.config}
        self.before, self.span, self.after = range(start), range(start, end + 1), range(end + 1, count)
        self.name = f"{type(model).__name__}:{start}-{end}"
        self.boundary = f"the output of layers {start}-{end}, before the layers that follow"
        self.hidden_size, self.vocabulary_size = int(config.hidden_size), len(model.get_output_embeddings().weight)
        self.max_positions = getattr(config, "max_position_embeddings", None)
        eos = getattr(config, "eos_token_id", None)
        self.eos_ids = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        self.model = _twin(model)
        self.model.passage = passage = Passage()
        for index, layer in enumerate(self.model.get_submodule(where)):
            # A partial, unlike a closure, is copied along with the module.
            layer.forward = functools.partial(passage.layer, index, count - 1, layer.forward)
        self.model.get_output_embeddings().register_forward_pre_hook(passage.at_head)
        token = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        with torch.no_grad():
            found = self._pass(self.model, {"input_ids": token}, running=range(count), after=count - 1)
        if len(passage.tuples) != count or getattr(found, "ndim", 0) != 3:
            raise LoopscopeError(
                f"{self.name} does not pass one state [rows, positions, width] from layer to layer; "
                "loop_layers needs a model that does"
            )
        self.coda = _coda(self.model, where, end)
        self.prepare()

    @property
    def dtype(self) -> torch.dtype:
        """The arithmetic of embed and step: that of the head."""
        found: torch.dtype = self.model.get_output_embeddings().weight.dtype
        return found

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

    def embed(self, batch: Batch) -> Context:
        """H_0 is the state before the span: the layers ahead of it run once."""
        self.check_batch(batch, from_zero=True)
        batch = batch.to(self.device)
        if batch.initial_state is not None:
            return Context(batch.initial_state.to(self.dtype), batch)
        given = {"input_ids": batch.input_ids}
        return Context(self._pass(self.model, given, running=self.before, after=self.before.stop - 1), batch)

    def step(self, state: Tensor, context: Context) -> Tensor:
        """The span once."""
        given, last = {"input_ids": context.batch.input_ids}, self.span.stop - 1
        return cast(Tensor, self._pass(self.model, given, running=self.span, entering=state, after=last))

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Logits through the layers after the span."""
        return self.body_and_head(dtype)(state, positions)

    def body_and_head(self, dtype: torch.dtype | None = None) -> BodyAndHead:
        """The readout as the layers after the span with the last norm, and the head with what follows it."""

        def run(rows: int, width: int, **changes: Any) -> Any:
            # Embedded tokens that something else takes the place of.
            nothing = torch.zeros(rows, width, self.hidden_size, dtype=dtype or self.dtype, device=self.device)
            return self._pass(self.in_dtype(self.coda, dtype), {"inputs_embeds": nothing}, **changes)

        def body(state: Tensor, positions: Tensor | None) -> Tensor:
            entering = state if dtype is None else state.to(dtype)
            return select(run(*state.shape[:2], running=self.after, entering=entering), positions)

        def head(hidden: Tensor) -> Tensor:
            # A row of its own: what follows the head acts on each position by itself.
            made: Tensor = run(1, 1, hidden=hidden.unsqueeze(0) if hidden.ndim == 2 else hidden)
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
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if not isinstance(model, nn.Module) or head is None or getattr(model.config, "is_encoder_decoder", False):
        raise LoopscopeError(
            "loop_layers takes a causal language model of transformers (AutoModelForCausalLM.from_pretrained) with a "
            f"head and without an encoder, not a {type(model).__name__}"
        )
    if getattr(model, "is_quantized", False) or len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        raise LoopscopeError("loop_layers needs weights that are not quantized, all on one device")
    looped = TransformersLoop(model, start, end, layers)
    looped.name, looped.tokenizer = name or looped.name, tokenizer
    return looped


def loop_checkpoint(
    folder: Path, chosen: Mapping[str, Any], device: torch.device, dtype: torch.dtype
) -> TransformersLoop:
    """Layers of the checkpoint in a folder, `loop=FIRST-LAST`, without code of the checkpoint."""
    import transformers

    span = re.fullmatch(r"(\d{1,9})-(\d{1,9})", str(chosen["loop"]), re.ASCII)
    if span is None or len(chosen) > 1:
        raise LoopscopeError(f"{setting('model_args')}: looped layers take loop=FIRST-LAST alone, as in loop=10-20")
    try:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except Exception as error:  # whatever transformers raises for a checkpoint that it cannot load
        reason = " ".join(str(error).split())[:200]
        raise LoopscopeError(f"transformers cannot load it to loop its layers ({reason})") from error
    return loop_layers(model.to(device=device, dtype=dtype), int(span[1]), int(span[2]))


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


def _coda(model: Any, where: str, end: int) -> Any:
    """A second copy, of the same parameters, without those that a readout does not use."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    coda = copy.deepcopy(model, memo)
    for layer in coda.get_submodule(where)[: end + 1]:
        layer._modules.clear()
    coda.set_input_embeddings(nn.Identity())
    return coda
