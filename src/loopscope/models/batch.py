"""What goes into a looped model: token ids, which of them are valid, where they sit.

Shapes: B rows (sequences), S positions, D hidden width.

Sequences that begin alike in one row, so that what they share is computed once.

    [shared tokens] [rest of sequence 1] [rest of sequence 2] …

A sequence's own tokens go on at the position where the shared ones end, and see those and themselves
(`Batch.segments`). In a causal model every state is then that of the sequence in a row of its own, but for the order
in which attention is summed. `Packing.separate` gives the states of each sequence its own row back, padded on the
right, as everything that reads states wants them: a readout that attends would take a packed row for one sequence.

Shapes: B rows, T positions of a packed row, R sequences, S positions of the longest, D hidden width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError

Padding = Literal["none", "right", "left"]


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
        source_rows: the benchmark row each sequence comes from; it seeds a drawn initial state.
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

    def __post_init__(self) -> None:
        ids = self.input_ids
        if ids.dim() != 2 or ids.shape[0] == 0 or ids.shape[1] == 0 or ids.dtype != torch.int64:
            raise LoopscopeError(
                f"input_ids must be int64 of shape [rows, positions], not {ids.dtype} {list(ids.shape)}"
            )
        shaped = (self.attention_mask, self.position_ids, self.segments)
        for name, given in zip(("attention_mask", "position_ids", "segments"), shaped, strict=True):
            if given is not None and given.shape != ids.shape:
                raise LoopscopeError(
                    f"{name} has shape {list(given.shape)} but input_ids {list(ids.shape)}; give them one shape"
                )
        if self.source_rows is not None and len(self.source_rows) != ids.shape[0]:
            raise LoopscopeError(
                f"source_rows names {len(self.source_rows)} rows for a batch of {ids.shape[0]}; name one a row"
            )
        if self.initial_state is not None and self.initial_state.shape[:2] != ids.shape:
            raise LoopscopeError(
                f"initial_state has shape {list(self.initial_state.shape)} but input_ids {list(ids.shape)}; "
                "give one state a position"
            )
        if self.segments is not None and self.position_ids is None:
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
    ) -> Batch:
        """Sequences of different lengths as one batch; the pad id never reaches a result."""
        if not rows or not all(len(row) for row in rows):
            raise LoopscopeError("a batch needs at least one row, and every row at least one token")
        width = max(len(row) for row in rows)
        ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
        mask = torch.zeros(len(rows), width, dtype=torch.bool)
        for index, row in enumerate(rows):
            place = slice(0, len(row)) if padding == "right" else slice(width - len(row), width)
            ids[index, place] = torch.tensor(list(row), dtype=torch.int64)
            mask[index, place] = True
        return cls(ids, mask, source_rows=source_rows)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""

        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        return dataclasses.replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            attention_mask=self.attention_mask.to(device, non_blocking=True),
            position_ids=move(self.position_ids),
            initial_state=move(self.initial_state),
            segments=move(self.segments),
        )


def _padding(mask: Tensor) -> Padding:
    if bool(mask.all()):
        return "none"
    empty = (~mask.any(dim=1)).nonzero()
    if empty.numel():
        raise LoopscopeError(f"row {int(empty[0])} of the batch has no valid token; leave empty rows out")
    rises = mask[:, 1:] & ~mask[:, :-1]
    return "left" if bool(rises.any()) else "right"


class Group(NamedTuple):
    """Sequences whose first `shared` tokens are the same and run once; with 0 each has a row of its own."""

    sequences: Sequence[Sequence[int]]
    shared: int = 0
    source_row: int = 0

    @property
    def rows(self) -> int:
        """Rows that it takes in a batch."""
        return 1 if self.shared else len(self.sequences)

    @property
    def width(self) -> int:
        """Tokens of its longest row."""
        lengths = [len(sequence) for sequence in self.sequences]
        return sum(lengths) - self.shared * (len(lengths) - 1) if self.shared else max(lengths)


@dataclass(frozen=True)
class Packing:
    """A batch and where its sequences are.

    Attributes:
        batch: what the model runs.
        sequences: the same with every sequence in a row of its own, which is how `separate` arranges states.
        place_RS: [R, S], which of the B·T positions is position s of sequence r (beyond a sequence's end, some
            position of its row); None where every sequence has a row of its own.
    """

    batch: Batch
    sequences: Batch
    place_RS: Tensor | None = None

    def to(self, device: torch.device | str) -> Packing:
        """The same packing on another device."""
        batch = self.batch.to(device)
        if self.place_RS is None:
            return Packing(batch, batch)
        return Packing(batch, self.sequences.to(device), self.place_RS.to(device, non_blocking=True))

    def separate(self, packed_BTD: Tensor) -> Tensor:
        """What stands at the positions of each sequence, [R, S, D]."""
        if self.place_RS is None:
            return packed_BTD
        flat = packed_BTD.reshape(-1, packed_BTD.shape[-1])
        return flat.index_select(0, self.place_RS.reshape(-1)).reshape(*self.place_RS.shape, -1)


def common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """How many tokens the sequences begin with in common, if each is to keep one of its own.

    >>> common_prefix([[1, 2, 3], [1, 2, 4, 5]]), common_prefix([[1, 2], [1, 2, 4]]), common_prefix([[1, 2]])
    (2, 1, 0)
    """
    if len(sequences) < 2:
        return 0
    most = min(len(sequence) for sequence in sequences) - 1
    first = sequences[0]
    for place in range(most):
        if any(sequence[place] != first[place] for sequence in sequences[1:]):
            return place
    return most


def pack(groups: Sequence[Group]) -> Packing:
    """The groups one after the other, each in one row or a row a sequence, padded on the right.

    >>> packing = pack([Group([[5, 6, 7], [5, 6, 8, 9]], 2), Group([[3, 4]])])
    >>> packing.batch.input_ids.tolist(), packing.place_RS.tolist()
    ([[5, 6, 7, 8, 9], [3, 4, 0, 0, 0]], [[0, 1, 2, 0], [0, 1, 3, 4], [5, 6, 5, 5]])
    """
    sequences = Batch.from_rows(
        [sequence for group in groups for sequence in group.sequences],
        source_rows=[group.source_row for group in groups for _ in group.sequences],
    )
    if not any(group.shared for group in groups):
        return Packing(sequences, sequences)
    laid = [row for group in groups for row in _rows(group)]
    plain = Batch.from_rows([row.ids for row in laid])
    positions, segments = torch.zeros_like(plain.input_ids), torch.zeros_like(plain.input_ids)
    width = plain.input_ids.shape[1]
    longest = sequences.input_ids.shape[1]
    place_RS: list[list[int]] = []
    for index, row in enumerate(laid):
        positions[index, : len(row.ids)] = torch.tensor(row.positions)
        segments[index, : len(row.ids)] = torch.tensor(row.segments)
        start = index * width
        place_RS += [[start + at for at in place] + [start] * (longest - len(place)) for place in row.places]
    sources = [group.source_row for group in groups for _ in range(group.rows)]
    batch = Batch(plain.input_ids, plain.attention_mask, positions, sources, segments=segments)
    return Packing(batch, sequences, torch.tensor(place_RS))


class _Row(NamedTuple):
    """One row, and for each of its sequences where in the row its positions are."""

    ids: list[int]
    positions: list[int]
    segments: list[int]
    places: list[list[int]]


def _rows(group: Group) -> list[_Row]:
    if not group.shared:
        counted = [list(range(len(sequence))) for sequence in group.sequences]
        return [
            _Row(list(sequence), places, [0] * len(places), [places])
            for sequence, places in zip(group.sequences, counted, strict=True)
        ]
    shared = group.shared
    row = _Row(list(group.sequences[0][:shared]), list(range(shared)), [0] * shared, [])
    for number, sequence in enumerate(group.sequences, start=1):
        begin, own = len(row.ids), len(sequence) - shared
        row.ids.extend(sequence[shared:])
        row.positions.extend(range(shared, len(sequence)))
        row.segments.extend([number] * own)
        row.places.append([*range(shared), *range(begin, begin + own)])
    return [row]
