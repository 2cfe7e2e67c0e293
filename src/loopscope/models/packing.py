"""Sequences side by side in one row: those that begin alike (`--share-context`), or all of a batch, without padding.

    [shared tokens] [rest of sequence 1] [rest of sequence 2] …

The rest of a sequence continues at the position where the shared tokens end, and sees those and itself
(`Batch.segments`). In a causal model every state is then that of the sequence in a row of its own, except for the
order in which attention is summed. `Packing.separate` gives the states of each sequence its own row back, padded on
the right, as everything that reads states expects: a readout that attends would take a packed row for one sequence.

Without padding, all of that stands in one row, question after question, and `Batch.parts` says which stretches of it
see which.

Shapes: B rows, T positions of a packed row, R sequences, S positions of the longest, N positions of all sequences, D
hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from loopscope.models.batch import Batch, Parts


class Group(NamedTuple):
    """Sequences whose first `shared` tokens are the same and run once; with 0 each has a row of its own.

    `prompts` says how many tokens of each are its prompt, where that is known.
    """

    sequences: Sequence[Sequence[int]]
    shared: int = 0
    source_row: int = 0
    prompts: Sequence[int] | None = None

    @property
    def rows(self) -> int:
        """Rows that it takes in a batch."""
        return 1 if self.shared else len(self.sequences)

    @property
    def width(self) -> int:
        """Tokens of its longest row."""
        lengths = [len(sequence) for sequence in self.sequences]
        return self.tokens if self.shared else max(lengths)

    @property
    def tokens(self) -> int:
        """Tokens that run, without padding."""
        lengths = [len(sequence) for sequence in self.sequences]
        return sum(lengths) - self.shared * (len(lengths) - 1)


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


def pack(groups: Sequence[Group], *, unpadded: bool = False) -> Packing:
    """The groups one after the other, each in one row or a row a sequence, padded on the right; or all in one row.

    >>> packing = pack([Group([[5, 6, 7], [5, 6, 8, 9]], 2), Group([[3, 4]])])
    >>> packing.batch.input_ids.tolist(), packing.place_RS.tolist()
    ([[5, 6, 7, 8, 9], [3, 4, 0, 0, 0]], [[0, 1, 2, 0], [0, 1, 3, 4], [5, 6, 5, 5]])
    >>> packing = pack([Group([[5, 6, 7], [5, 6, 8, 9]], 2), Group([[3, 4]])], unpadded=True)
    >>> packing.batch.input_ids.tolist(), packing.batch.position_ids.tolist()
    ([[5, 6, 7, 8, 9, 3, 4]], [[0, 1, 2, 2, 3, 0, 1]])
    """
    prompts = [group.prompts for group in groups if group.prompts is not None]
    sequences = Batch.from_rows(
        [sequence for group in groups for sequence in group.sequences],
        source_rows=[group.source_row for group in groups for _ in group.sequences],
        prompt_lengths=[length for own in prompts for length in own] if len(prompts) == len(groups) else None,
    )
    if unpadded:
        return _one_row(groups, sequences)
    if not any(group.shared for group in groups):
        return Packing(sequences, sequences)
    laid = [row for group in groups for row in _rows(group)]
    plain = Batch.from_rows([row.ids.tolist() for row in laid])
    positions, segments = torch.zeros_like(plain.input_ids), torch.zeros_like(plain.input_ids)
    width = plain.input_ids.shape[1]
    longest = sequences.input_ids.shape[1]
    place_RS: list[_Numbers] = []
    for index, row in enumerate(laid):
        positions[index, : len(row.ids)] = torch.from_numpy(row.positions)
        segments[index, : len(row.ids)] = torch.from_numpy(row.segments)
        place_RS += [index * width + np.pad(place, (0, longest - len(place))) for place in row.places]
    sources = [group.source_row for group in groups for _ in range(group.rows)]
    batch = Batch(plain.input_ids, plain.attention_mask, positions, sources, segments=segments)
    return Packing(batch, sequences, torch.from_numpy(np.stack(place_RS)))


def _one_row(groups: Sequence[Group], sequences: Batch) -> Packing:
    """All groups in one row."""
    rows = [row for group in groups for row in _rows(group)]
    widths = [len(row.ids) for row in rows]
    begins = (np.cumsum(widths) - widths).tolist()
    counted = np.arange(sequences.input_ids.shape[1])
    asked, seen, shares, place_RS = [], [], [], []
    for begin, row in zip(begins, rows, strict=True):
        shared = int((row.segments == 0).sum())
        shares.append(shared)
        own = [place for place in row.places if len(place) > shared]
        asked += [shared, *(len(place) - shared for place in own)]
        seen += [begin + place for place in (np.arange(shared), *own)]
        place_RS += [begin + place[np.minimum(counted, len(place) - 1)] for place in row.places]
    known = [len(places) for places in seen]
    queries = np.cumsum([0, *asked])
    parts = Parts(
        torch.tensor(queries, dtype=torch.int32),
        torch.tensor([0, *np.cumsum(known)], dtype=torch.int32),
        torch.from_numpy(np.concatenate(seen)) if asked != known else None,
        max(asked),
        max(known),
        torch.tensor([*begins, queries[-1]], dtype=torch.int32),
        torch.tensor(shares, dtype=torch.int32),
        torch.from_numpy(np.repeat(queries[:-1], asked).astype(np.int32)),
        max(widths),
        torch.from_numpy(np.repeat(np.arange(len(rows)), widths))[None],
        tuple(max(map(len, row.places)) for row in rows),
    )
    ids, positions = (
        torch.from_numpy(np.concatenate([getattr(row, name) for row in rows]))[None] for name in ("ids", "positions")
    )
    sources = [group.source_row for group in groups for _ in range(group.rows)]
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), positions, sources, parts=parts)
    return Packing(batch, sequences, torch.from_numpy(np.stack(place_RS)))


_Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class _Row(NamedTuple):
    """One row, and for each of its sequences where in the row its positions are."""

    ids: _Numbers
    positions: _Numbers
    segments: _Numbers
    places: list[_Numbers]


def _rows(group: Group) -> list[_Row]:
    if not group.shared:
        counted = [np.arange(len(sequence)) for sequence in group.sequences]
        return [
            _Row(np.asarray(sequence, dtype=np.int64), places, np.zeros_like(places), [places])
            for sequence, places in zip(group.sequences, counted, strict=True)
        ]
    shared, counted = group.shared, [np.arange(group.shared)]
    ids = [np.asarray(group.sequences[0][:shared], dtype=np.int64)]
    places, begin = [], shared
    for sequence in group.sequences:
        ids.append(np.asarray(sequence[shared:], dtype=np.int64))
        counted.append(np.arange(shared, len(sequence)))
        places.append(np.concatenate([counted[0], counted[-1] + (begin - shared)]))
        begin += len(ids[-1])
    segments = np.repeat(np.arange(len(ids)), [len(part) for part in ids])
    return [_Row(np.concatenate(ids), np.concatenate(counted), segments, places)]
