"""The questions that a monitor asks: those of tasks, encoded once, or the rows of a training batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError, shown
from loopscope.measuring.batching import Question, encode_task
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.run import tasks_first
from loopscope.measuring.worker import load_configured_tokenizer
from loopscope.models.batch import Batch
from loopscope.models.protocol import LoopedModel
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
