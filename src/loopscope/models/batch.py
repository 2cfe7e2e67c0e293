"""What goes into a looped model: token ids, which of them are valid, where they sit.

Shapes: B rows (sequences), S positions, D hidden width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError

Padding = Literal["none", "right", "left"]


@dataclass(frozen=True)
class Parts:
    """How sequences of any lengths stand one after the other in the one row of a batch, without padding.

    A part is a stretch of the row whose positions are asked together: a sequence, or what several sequences share, or
    each sequence's own part. The keys of a part end where the part ends: its last position sees all of them, the
    one before it all but the last, and so on.

    Attributes:
        queries: where each part begins in the row, and where the last one ends, [parts + 1] int32.
        keys: where the keys of each part begin, counted through, and where the last ones end, [parts + 1] int32.
        places: which position of the row each of these keys is, [keys] int64; None where every part sees itself alone.
        longest: positions of the longest part.
        longest_keys: the most keys that a part has.
        rows: where each stretch of parts that share something begins, and where the last one ends, [rows + 1] int32.
        shared: how many positions of each of these stretches all of it sees, [rows] int32.
        own_N: where the part of each position begins, [N] int32.
        longest_row: positions of the longest stretch.
        owner_1N: which entry of `Batch.source_rows` each position belongs to, [1, N].
        lengths: the longest sequence of each of these entries.
    """

    queries: Tensor
    keys: Tensor
    places: Tensor | None
    longest: int
    longest_keys: int
    rows: Tensor
    shared: Tensor
    own_N: Tensor
    longest_row: int
    owner_1N: Tensor
    lengths: tuple[int, ...]

    def moved(self, move: Callable[[Tensor], Tensor]) -> Parts:
        """The same with every tensor moved."""
        return dataclasses.replace(self, **_each_tensor(self, move))


@dataclass(frozen=True)
class Batch:
    """Token sequences of one width.

    Build it on the CPU and move it with `to`: `padding` and `highest_id` are then worked out without
    making the accelerator wait.

    Attributes:
        input_ids: [B, S] int64.
        attention_mask: [B, S] bool, True where a token is valid.
        position_ids: [B, S] int64. Left out, every row's valid tokens are counted from 0, so that a row's
            numbers do not depend on how it is padded.
        segments: [B, S] int64 where a row holds several sequences that begin alike (`packing`): 0 for what they
            share, k for what is the k-th one's own. A position sees what came before in segment 0 and its own.
            Only models with `shares_context` read it.
        parts: how the sequences of the batch stand in its one row, where they do so without padding (`packing`). Only
            models with `unpadded` read it.
        prompt_lengths: [B] int64, how many tokens of each row are its prompt, where that is known. Models whose prompt
            attends both ways read it.
        source_rows: the benchmark row each sequence comes from; it seeds a drawn initial state. With `parts`, of what
            `Parts.owner_1N` counts.
        initial_state: [B, S, D]: start the recurrence here instead of at the family's own H_0.
        padding: "none"; "right" (every row's valid tokens come first); "left" (any other arrangement).
        highest_id: the largest token id.
        reach: one more than the largest position.

    >>> Batch.from_rows([[5, 6, 7], [8]]).attention_mask.int().tolist()
    [[1, 1, 1], [1, 0, 0]]
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor | None = None
    source_rows: Sequence[int] | None = None
    initial_state: Tensor | None = None
    padding: Padding | None = None
    highest_id: int | None = None
    segments: Tensor | None = None
    reach: int | None = None
    prompt_lengths: Tensor | None = None
    parts: Parts | None = None

    def __post_init__(self) -> None:
        ids = self.input_ids
        if ids.dim() != 2 or ids.shape[0] == 0 or ids.shape[1] == 0 or ids.dtype != torch.int64:
            raise LoopscopeError(
                f"input_ids must be int64 of shape [rows, positions], not {ids.dtype} {list(ids.shape)}"
            )
        shape, sources = list(ids.shape), ids.shape[0] if self.parts is None else len(self.parts.lengths)
        wanted = {"attention_mask": shape, "position_ids": shape, "segments": shape, "prompt_lengths": shape[:1]}
        found = {name: list(given.shape) for name in wanted if (given := getattr(self, name)) is not None}
        if self.initial_state is not None:
            wanted["initial_state"], found["initial_state"] = shape, list(self.initial_state.shape[:2])
        if self.source_rows is not None:
            wanted["source_rows"], found["source_rows"] = [sources], [len(self.source_rows)]
        for name, given in found.items():
            if given != wanted[name]:
                raise LoopscopeError(f"{name} has shape {given} where input_ids has {shape}: give {wanted[name]}")
        if self.is_packed and self.position_ids is None:
            raise LoopscopeError("segments begin again at a position of their own; give position_ids along with them")
        if self.attention_mask.dtype != torch.bool:
            object.__setattr__(self, "attention_mask", self.attention_mask != 0)
        if self.padding is None:
            object.__setattr__(self, "padding", _padding(self.attention_mask))
        if self.highest_id is None:
            if int(ids.min()) < 0:
                raise LoopscopeError("input_ids has a negative id; pad with a token of the vocabulary")
            object.__setattr__(self, "highest_id", int(ids.max()))
        if self.reach is None:
            reach = ids.shape[1] if self.position_ids is None else int(self.position_ids.max()) + 1
            object.__setattr__(self, "reach", reach)

    @property
    def is_packed(self) -> bool:
        """Whether a row holds more than one sequence."""
        return self.segments is not None or self.parts is not None

    @classmethod
    def of(cls, input_ids: Tensor) -> Batch:
        """Token ids [B, S] that are all valid."""
        return cls(input_ids, torch.ones_like(input_ids, dtype=torch.bool))

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Sequence[int]],
        *,
        pad_id: int = 0,
        padding: Literal["right", "left"] = "right",
        source_rows: Sequence[int] | None = None,
        prompt_lengths: Sequence[int] | None = None,
    ) -> Batch:
        """Sequences of different lengths as one batch; the pad id never reaches a result."""
        if not rows or not all(len(row) for row in rows):
            raise LoopscopeError("a batch needs at least one row, and every row at least one token")
        width = max(len(row) for row in rows)
        lengths, places = np.array([len(row) for row in rows])[:, None], np.arange(width)
        valid = places < lengths if padding == "right" else places >= width - lengths
        filled = np.full(valid.shape, pad_id, dtype=np.int64)
        filled[valid] = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
        ids, mask = torch.from_numpy(filled), torch.from_numpy(valid)
        prompts = None if prompt_lengths is None else torch.tensor(prompt_lengths, dtype=torch.int64)
        return cls(ids, mask, source_rows=source_rows, prompt_lengths=prompts)

    def rows(self, index: slice | Tensor) -> Batch:
        """Some of the rows, as wide as before: a slice, or their numbers."""
        if isinstance(index, Tensor):
            index = index.to(self.input_ids.device)
        sources = self.source_rows
        if sources is not None:
            sources = sources[index] if isinstance(index, slice) else [sources[row] for row in index.tolist()]
        return dataclasses.replace(self, **_each_tensor(self, lambda held: held[index]), source_rows=sources)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""

        def move(held: Tensor) -> Tensor:
            return held.to(device, non_blocking=True)

        parts = None if self.parts is None else self.parts.moved(move)
        return dataclasses.replace(self, **_each_tensor(self, move), parts=parts)


def _each_tensor(held: Batch | Parts, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """The tensors among the attributes, changed."""
    return {name: change(value) for name, value in vars(held).items() if isinstance(value, Tensor)}


def _padding(mask: Tensor) -> Padding:
    if bool(mask.all()):
        return "none"
    empty = (~mask.any(dim=1)).nonzero()
    if empty.numel():
        raise LoopscopeError(f"row {int(empty[0])} of the batch has no valid token; leave empty rows out")
    rises = mask[:, 1:] & ~mask[:, :-1]
    return "left" if bool(rises.any()) else "right"
