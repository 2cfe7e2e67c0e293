"""What a monitor watches: the questions of tasks or the rows of a batch, and a model in the middle of its training.

Wrappers are taken off; autocast and compiled code are set aside; mode, `requires_grad`, buffers and random streams are
afterwards as they were, to the bit. Gradients, optimisers and weights are never written.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.measuring.batching import Question, encode_task
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.run import tasks_first
from loopscope.measuring.worker import load_configured_tokenizer
from loopscope.models.batch import Batch
from loopscope.models.in_memory import evaluating
from loopscope.models.protocol import LoopedModel, LoopedModule
from loopscope.models.registry import require_model
from loopscope.tasks.encoding import Example, Row
from loopscope.tasks.encoding import Sequence as TokenSequence
from loopscope.tasks.own_task import check_vocabulary

BATCH = "batch"
"""What the rows of a batch are called where tasks have their names."""


@dataclass(frozen=True)
class WatchedTask:
    """Questions under one name.

    Attributes:
        name: of the task.
        questions: encoded.
        facts: what the log's header says of it.
    """

    name: str
    questions: tuple[Question, ...]
    facts: Mapping[str, Any]


def tasks_of(model: LoopedModel, settings: MeasureConfig) -> list[WatchedTask]:
    """Tasks loaded and encoded: the first questions of each, up to the limit."""
    settings, loaded = tasks_first(settings)
    tokenizer, allowed = load_configured_tokenizer(settings, model), getattr(model, "max_positions", None)
    if tokenizer is not None:
        tokenizer.check_fits(model.vocabulary_size, model.name)
    found = []
    for task in loaded or ():
        check_vocabulary(task, model.vocabulary_size, model.name)
        questions = encode_task(task, tokenizer, allowed, settings.long).questions
        facts = {"name": task.name, "split": task.split, **_sizes(questions), "sha256": task.data_hash}
        found.append(WatchedTask(task.name, questions, facts))
    return found


def _sizes(questions: Sequence[Question]) -> dict[str, int]:
    return {"questions": len(questions), "tokens": sum(q.example.prediction_count for q in questions)}


ANY_BATCH = {"name": BATCH, "split": "", "questions": None, "tokens": None, "sha256": None}
"""The header's words for batches that differ from call to call."""


def is_batch(given: Any) -> bool:
    """Whether it holds token ids and not tasks."""
    return isinstance(given, Tensor | Batch) or (isinstance(given, Mapping) and "input_ids" in given) or _is_pair(given)


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(part, Tensor) for part in given)


def batch_task(given: Any, limit: int) -> WatchedTask:
    """The first `limit` rows of a batch, each a question whose references are the tokens that the loss counts.

    Args:
        given: token ids [B, S], all of them references but the first; a mapping with `input_ids` and, as the models
            of transformers take them, `labels` and `attention_mask`; a pair of inputs and targets, [B, S] each, the
            targets one token ahead.
        limit: the most rows.
    """
    ids_BS, counted_BS, valid_BS = (tensor[:limit].cpu() for tensor in _tensors(given))
    rows = enumerate(zip(ids_BS.tolist(), counted_BS.tolist(), valid_BS.tolist(), strict=True))
    questions = [question for row, parts in rows if (question := _question(row, *parts)) is not None]
    if not questions:
        raise LoopscopeError("no row of the batch has a token to predict: its labels count none")
    return WatchedTask(BATCH, tuple(questions), ANY_BATCH)


def _tensors(given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, whether each is a reference, and whether it is there at all, [B, S] each."""
    held = _as_mapping(given)
    ids, labels, mask = held["input_ids"], held.get("labels"), held.get("attention_mask")
    for name, tensor in (("input_ids", ids), ("labels", labels), ("attention_mask", mask)):
        if tensor is not None and (not isinstance(tensor, Tensor) or tensor.shape != ids.shape or ids.dim() != 2):
            raise LoopscopeError(f"{name} of the batch must be a tensor [rows, width], not {shown(tensor)}")
    valid = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask != 0
    counted = valid if labels is None else valid & (labels >= 0)
    if labels is not None and not torch.equal(labels[counted], ids[counted]):
        raise LoopscopeError(
            "labels must be the input_ids themselves (targets: the inputs one token ahead), or negative where nothing"
            " is scored"
        )
    return ids, counted, valid


def _as_mapping(given: Any) -> Mapping[str, Any]:
    """A batch as the models of transformers take it."""
    if isinstance(given, Mapping):
        return given
    if isinstance(given, Batch):
        return {"input_ids": given.input_ids, "attention_mask": given.attention_mask}
    if isinstance(given, Tensor):
        return {"input_ids": given}
    inputs, targets = given
    if inputs.shape != targets.shape or inputs.dim() != 2:
        raise LoopscopeError(f"inputs {list(inputs.shape)} and targets {list(targets.shape)} must be [rows, width]")
    last = targets[:, -1:]
    ids, labels = torch.cat([inputs, last.clamp(min=0)], 1), torch.cat([torch.full_like(last, -1), targets], 1)
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.cat([torch.ones_like(inputs), last >= 0], 1)}


def _question(row: int, ids: list[int], counted: list[bool], valid: list[bool]) -> Question | None:
    kept = [place for place, there in enumerate(valid) if there]
    token_ids = tuple(ids[place] for place in kept)
    positions = tuple(index - 1 for index, place in enumerate(kept) if index and counted[place])
    if not positions:
        return None
    targets = tuple(token_ids[position + 1] for position in positions)
    example = Example(f"row {row}", row, "", (TokenSequence(token_ids, positions, targets),))
    return Question(row, example, Row(example.id, row, "", ("",)))


_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}
"""Where each kind of wrapper holds the model itself."""
_SHARDED = ("FullyShardedDataParallel", "DeepSpeedEngine")
"""Wrappers under which no process holds all weights; `fully_shard` wraps nothing, but its weights have a mesh."""


def bare(model: Any) -> LoopedModel:
    """The looped model inside what distributes or compiles it.

    Raises:
        LoopscopeError: it is none, or no process holds all of its weights.
    """
    model = unwrapped(model)
    if not isinstance(model, nn.Module) and not hasattr(model, "step"):
        raise LoopscopeError(
            f"{setting('model')} must be the model that is trained, as it is in memory, not {shown(model)}: a saved "
            "one is measured with loopscope.measure"
        )
    return require_model(model, type(model).__name__)


def unwrapped(model: Any) -> Any:
    """A model without what distributes or compiles it."""
    while (kind := type(model).__name__) in _WRAPPERS:
        model = getattr(model, _WRAPPERS[kind])
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    if kind in _SHARDED or any(hasattr(weight, "device_mesh") for weight in weights):
        raise LoopscopeError(f"a {kind} spreads its weights over processes: save checkpoints and measure those instead")
    return model


@contextmanager
def untouched(model: LoopedModel) -> Iterator[None]:
    """Within this block the model is measured as a checkpoint of it would be; afterwards all is as before."""
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        for kind in {"cpu", model.device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        if "torch._dynamo" in sys.modules:
            # Nothing is compiled again for other shapes, which could change what training steps run.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad=True")  # a checkpointed step
        _forget_casts(model)
        try:
            yield
        finally:
            _forget_casts(model)


def _forget_casts(model: LoopedModel) -> None:
    if isinstance(model, LoopedModule):
        model.forget_casts()


class Autocast:
    """A looped model whose `embed` and `step` run under autocast; it is read out as ever."""

    def __init__(self, model: LoopedModel, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        self.embed, self.step = self._cast(model.embed), self._cast(model.step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _cast(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(self._model.device.type, self._dtype):
                return function(*args, **kwargs)

        return run
