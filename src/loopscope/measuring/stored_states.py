"""Recurrent states on disk: what `keep_states=` stores of every batch, and how `continue_from=` goes on from there.

A unit's file holds, for each of its batches in order, everything that the next loop is given and that cannot be had
from the questions alone:

    NNN.rows    the questions, by `row`                                         [B]
    NNN.ids     the tokens that the model ran, options in one row where shared  [R, S]
    NNN.state   H at the depth, padding included                                [R, S, D]
    NNN.carry…  what steps carry along, if they do: tensors in lists, tuples and mappings
    NNN.gate    the exit gate's logits at the depths up to it, where the model has one, in the arithmetic of the states
    NNN.gate64  the same in float64, at the reference positions

What stays fixed (an injection, rotary tables, a drawn H₀) is made again by `embed`, from the same tokens. A batch that
memory made smaller than it was stored walks the whole way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.layout import Question
from loopscope.measuring.tokens import GateTrace
from loopscope.measuring.transfer import on_its_way
from loopscope.models.walk import Walk

_KEY = "loopscope"
"""The one entry of a file's metadata: several would be written in any order."""


@dataclass(frozen=True)
class Midway:
    """A batch at a depth.

    Attributes:
        rows: its questions.
        depth: loops done.
        tensors: by the names above, without the batch's number.
        carry: the form of what is carried along, whose tensors are among these.
        sent: tells when they are on the host; None where they are already.
    """

    rows: tuple[int, ...]
    depth: int
    tensors: dict[str, Tensor]
    carry: Any
    sent: torch.cuda.Event | None = None

    @classmethod
    def of(cls, questions: Sequence[Question], walk: Walk, gate: GateTrace | None) -> Midway:
        """What there is now, on its way to the host."""
        batch = walk.context.batch
        found = {"ids": batch.input_ids.to(torch.int32), "state": walk.state}
        carry = _described(walk.carry, "carry", found, walk.model.name)
        if gate is not None and gate.published:
            found["gate"] = torch.stack(gate.published)
            found["gate64"] = torch.stack(gate.rebuilt)
        held = {name: on_its_way(tensor) for name, tensor in found.items()}
        sent = torch.cuda.current_stream(walk.state.device).record_event() if walk.state.is_cuda else None
        return cls(tuple(question.row for question in questions), walk.depth, held, carry, sent)

    def resume(self, walk: Walk, gate: GateTrace | None) -> None:
        """Put a walk that stands at depth 0 here."""
        device = walk.state.device
        ids_RS = self.tensors["ids"].to(device)
        if walk.state.shape != self.tensors["state"].shape or not torch.equal(
            ids_RS, walk.context.batch.input_ids.int()
        ):
            raise LoopscopeError(
                f"the stored states are of other tokens than the questions have now: leave out"
                f" {setting('continue_from')}, or measure the states again with {setting('keep_states', self.depth)}"
            )
        held = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        walk.depth, walk.state, walk.carry = self.depth, held["state"], _rebuilt(self.carry, held)
        if gate is not None and "gate" in held:
            gate.published += held["gate"].unbind()
            gate.rebuilt += held["gate64"].unbind() if gate.positions is not None else ()


def _described(carry: Any, name: str, into: dict[str, Tensor], model: str) -> Any:
    """The form of what is carried along, as JSON; its tensors are put beside the state."""
    if isinstance(carry, Tensor):
        into[name] = carry
        return {"tensor": name}
    if isinstance(carry, list | tuple) and not hasattr(carry, "_fields"):
        kind = "list" if isinstance(carry, list) else "tuple"
        return {kind: [_described(part, f"{name}.{place}", into, model) for place, part in enumerate(carry)]}
    if isinstance(carry, dict) and all(isinstance(key, str) for key in carry):
        return {"dict": {key: _described(part, f"{name}.{key}", into, model) for key, part in carry.items()}}
    if carry is None or isinstance(carry, bool | int | float | str):
        return {"value": carry}
    raise LoopscopeError(
        f"{model} carries a {type(carry).__name__} along, which {setting('keep_states')} cannot store: carry tensors,"
        " numbers, and lists, tuples or dicts of them"
    )


def _rebuilt(form: Any, held: dict[str, Tensor]) -> Any:
    ((kind, content),) = form.items()
    if kind == "tensor":
        return held[content]
    if kind == "dict":
        return {key: _rebuilt(part, held) for key, part in content.items()}
    if kind == "value":
        return content
    parts = [_rebuilt(part, held) for part in content]
    return parts if kind == "list" else tuple(parts)


def encode_states(batches: Iterable[Midway]) -> bytes:
    """The file of a unit whose batches these are."""
    tensors: dict[str, Tensor] = {}
    carries, depth = [], 0
    for number, batch in enumerate(batches):
        if batch.sent is not None:
            batch.sent.synchronize()
        tensors[f"{number:03d}.rows"] = torch.tensor(batch.rows, dtype=torch.int64)
        tensors |= {f"{number:03d}.{name}": tensor for name, tensor in batch.tensors.items()}
        carries.append(batch.carry)
        depth = batch.depth
    return save(tensors, {_KEY: json.dumps({"depth": depth, "carry": carries})})


class StoredStates:
    """The file of one unit."""

    def __init__(self, path: Path) -> None:
        self._file = cast(Any, safe_open(path, framework="pt"))
        described = json.loads(self._file.metadata()[_KEY])
        self.depth: int = described["depth"]
        self._carries: list[Any] = described["carry"]
        self._names = tuple(self._file.keys())
        self._rows = [tuple(self._file.get_tensor(f"{n:03d}.rows").tolist()) for n in range(len(self._carries))]

    def batches(self, questions: Sequence[Question]) -> list[list[Question]]:
        """The questions in the batches that they were stored in."""
        by_row = {question.row: question for question in questions}
        found = [[by_row[row] for row in rows if row in by_row] for rows in self._rows]
        return [batch for batch in found if batch]

    def midway(self, batch: Sequence[Question]) -> Midway | None:
        """A batch at the depth; None where it was not stored as a whole."""
        rows = tuple(question.row for question in batch)
        if rows not in self._rows:
            return None
        number = self._rows.index(rows)
        prefix = f"{number:03d}."
        names = [name for name in self._names if name.startswith(prefix) and name != f"{prefix}rows"]
        tensors = {name.removeprefix(prefix): self._file.get_tensor(name) for name in names}
        return Midway(rows, self.depth, tensors, self._carries[number])
