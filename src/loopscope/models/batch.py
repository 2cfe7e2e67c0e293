"""What goes into a looped model: token ids, which of them are valid, where they stand.

Sequences have a row each, padded on the right, or all of a batch stand in one row, without padding (`pack`):

    [shared tokens] [rest of sequence 1] [rest of sequence 2] … [shared tokens of the next question] …

There the tokens that the options of a question have in common run once (`--share-context`). The rest of a sequence
continues at the position where they end, and sees those and itself; `Batch.parts` says which stretches of the row see
which. In a causal model every state is then that of the sequence in a row of its own, except for the order in which
attention is summed. `Packing.separate` gives the states of each sequence its own row back, padded on the right, as
everything that reads states expects: a readout that attends would take a packed row for one sequence.

Shapes: B rows, S positions (of the longest sequence), N positions of all sequences, R sequences, D hidden width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError

Padding = Literal["none", "right", "left"]


@dataclass(frozen=True)
class Parts:
    """How sequences of any lengths stand one after the other in the one row of a batch, without padding.

    A part is a stretch of the row whose positions are queries together: a sequence, or what several sequences share, or
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
        source_rows: the benchmark row each sequence comes from; it seeds a drawn initial state. With `parts`, of what
            `Parts.owner_1N` counts.
        initial_state: [B, S, D]: start the recurrence here instead of at the family's own H_0.
        padding: "none"; "right" (every row's valid tokens come first); "left" (any other arrangement).
        highest_id: the largest token id.
        reach: one more than the largest position.
        prompt_lengths: [B] int64, how many tokens of each row are its prompt, where that is known. Models whose prompt
            attends both ways read it.
        parts: how the sequences of the batch stand in its one row, where they do so without padding. Only models that
            are `unpadded` read it.

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
    reach: int | None = None
    prompt_lengths: Tensor | None = None
    parts: Parts | None = None

    def __post_init__(self) -> None:
        ids = self.input_ids
        if ids.dim() != 2 or 0 in ids.shape or ids.dtype != torch.int64:
            raise LoopscopeError(
                f"input_ids must be int64 of shape [rows, positions], not {ids.dtype} {list(ids.shape)}"
            )
        shape, sources = list(ids.shape), self.source_rows
        wanted = {"attention_mask": shape, "position_ids": shape, "prompt_lengths": shape[:1]}
        found = {name: list(given.shape) for name in wanted if (given := getattr(self, name)) is not None}
        if self.initial_state is not None:
            wanted["initial_state"], found["initial_state"] = shape, list(self.initial_state.shape[:2])
        if sources is not None:
            wanted["source_rows"] = shape[:1] if self.parts is None else [len(self.parts.lengths)]
            found["source_rows"] = [len(sources)]
        for name, given in found.items():
            if given != wanted[name]:
                raise LoopscopeError(f"{name} has shape {given} where input_ids has {shape}: give {wanted[name]}")
        if self.attention_mask.dtype != torch.bool:
            object.__setattr__(self, "attention_mask", self.attention_mask != 0)
        if self.padding is None:
            object.__setattr__(self, "padding", _padding(self.attention_mask))
        if self.highest_id is None:
            if int(ids.min()) < 0:
                raise LoopscopeError("input_ids has a negative id; pad with a token of the vocabulary")
            object.__setattr__(self, "highest_id", int(ids.max()))
        if self.reach is None:
            reach = shape[1] if self.position_ids is None else int(self.position_ids.max()) + 1
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
        prompt_lengths: Sequence[int] | None = None,
    ) -> Batch:
        """Sequences of different lengths as one batch; the pad id never reaches a result."""
        if not rows or not all(len(row) for row in rows):
            raise LoopscopeError("a batch needs at least one row, and every row at least one token")
        lengths = np.array([len(row) for row in rows])[:, None]
        width = int(lengths.max())
        places = np.arange(width)
        valid = places < lengths if padding == "right" else places >= width - lengths
        filled = np.full(valid.shape, pad_id, dtype=np.int64)
        filled[valid] = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
        prompts = None if prompt_lengths is None else torch.tensor(prompt_lengths, dtype=torch.int64)
        ids, mask = torch.from_numpy(filled), torch.from_numpy(valid)
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
        return self.moved(lambda held: held.to(device, non_blocking=True))

    def moved(self, move: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with every tensor moved."""
        parts = None if self.parts is None else dataclasses.replace(self.parts, **_each_tensor(self.parts, move))
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


def select(state: Tensor, positions: Tensor | None) -> Tensor:
    """The states at `positions` [N, 2] of (row, position), [N, D]; all of them where None."""
    if positions is None:
        return state
    where = positions.to(state.device)
    return state[where[:, 0], where[:, 1]]


class Group(NamedTuple):
    """Sequences whose first `shared` tokens are the same and run once; with 0 each runs its own.

    `prompts` says how many tokens of each are its prompt, where that is known.
    """

    sequences: Sequence[Sequence[int]]
    shared: int = 0
    source_row: int = 0
    prompts: Sequence[int] | None = None

    @property
    def rows(self) -> int:
        """Rows that it takes in a batch, where sequences have rows of their own."""
        return 1 if self.shared else len(self.sequences)

    @property
    def width(self) -> int:
        """Tokens of its longest row."""
        return self.tokens if self.shared else max(map(len, self.sequences))

    @property
    def tokens(self) -> int:
        """Tokens that run, without padding."""
        return sum(map(len, self.sequences)) - self.shared * (len(self.sequences) - 1)


@dataclass(frozen=True)
class Packing:
    """A batch and where its sequences are.

    Attributes:
        batch: what the model runs.
        sequences: the same with every sequence in a row of its own, which is how `separate` arranges states.
        place_RS: [R, S], which of the N positions is position s of sequence r (beyond a sequence's end, its last one);
            None where every sequence has a row of its own.
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

    def separate(self, packed_1ND: Tensor) -> Tensor:
        """What stands at the positions of each sequence, [R, S, D]."""
        if self.place_RS is None:
            return packed_1ND
        flat = packed_1ND.reshape(-1, packed_1ND.shape[-1])
        return flat.index_select(0, self.place_RS.reshape(-1)).reshape(*self.place_RS.shape, -1)


def common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """How many tokens the sequences begin with in common, if each is to keep one of its own.

    >>> common_prefix([[1, 2, 3], [1, 2, 4, 5]]), common_prefix([[1, 2], [1, 2, 4]]), common_prefix([[1, 2]])
    (2, 1, 0)
    """
    if len(sequences) < 2:
        return 0
    most = min(len(sequence) for sequence in sequences) - 1
    same = (all(sequence[at] == sequences[0][at] for sequence in sequences) for at in range(most))
    return next((at for at, is_same in enumerate(same) if not is_same), most)


def pack(groups: Sequence[Group], *, unpadded: bool = False) -> Packing:
    """The groups one after the other: a row for each sequence, padded on the right; or all in one row, without padding.

    Where a group shares tokens, all stand in one row.

    >>> packing = pack([Group([[5, 6, 7], [5, 6, 8, 9]], 2), Group([[3, 4]])])
    >>> packing.batch.input_ids.tolist(), packing.batch.position_ids.tolist()
    ([[5, 6, 7, 8, 9, 3, 4]], [[0, 1, 2, 2, 3, 0, 1]])
    >>> packing.place_RS.tolist()
    [[0, 1, 2, 2], [0, 1, 3, 4], [5, 6, 6, 6]]
    """
    prompts = [group.prompts for group in groups if group.prompts is not None]
    sequences = Batch.from_rows(
        [sequence for group in groups for sequence in group.sequences],
        source_rows=[group.source_row for group in groups for _ in group.sequences],
        prompt_lengths=[length for own in prompts for length in own] if len(prompts) == len(groups) else None,
    )
    if not unpadded and not any(group.shared for group in groups):
        return Packing(sequences, sequences)
    counted = np.arange(sequences.input_ids.shape[1])
    ids: list[int] = []
    positions: list[int] = []
    begins, shares, sources, lengths, asked, seen, place_RS = [], [], [], [], [], [], []
    for group in groups:
        for stretch in [group.sequences] if group.shared else [[sequence] for sequence in group.sequences]:
            begin, shared = len(ids), group.shared or len(stretch[0])
            begins.append(begin)
            shares.append(shared)
            sources.append(group.source_row)
            lengths.append(max(map(len, stretch)))
            ids += stretch[0][:shared]
            positions += range(shared)
            asked.append(shared)
            first = np.arange(begin, begin + shared)
            seen.append(first)
            for sequence in stretch:
                place = np.concatenate([first, np.arange(len(ids), len(ids) + len(sequence) - shared)])
                if len(sequence) > shared:
                    asked.append(len(sequence) - shared)
                    seen.append(place)
                place_RS.append(place[np.minimum(counted, len(place) - 1)])
                ids += sequence[shared:]
                positions += range(shared, len(sequence))
    queries, known = np.cumsum([0, *asked]), [len(places) for places in seen]
    ends = [*begins, len(ids)]
    parts = Parts(
        queries=torch.tensor(queries, dtype=torch.int32),
        keys=torch.tensor([0, *np.cumsum(known)], dtype=torch.int32),
        places=torch.from_numpy(np.concatenate(seen)) if asked != known else None,
        longest=max(asked),
        longest_keys=max(known),
        rows=torch.tensor(ends, dtype=torch.int32),
        shared=torch.tensor(shares, dtype=torch.int32),
        own_N=torch.from_numpy(np.repeat(queries[:-1], asked).astype(np.int32)),
        longest_row=int(np.diff(ends).max()),
        owner_1N=torch.from_numpy(np.repeat(np.arange(len(begins)), np.diff(ends)))[None],
        lengths=tuple(lengths),
    )
    ids_1N = torch.tensor(ids)[None]
    valid = torch.ones_like(ids_1N, dtype=torch.bool)
    batch = Batch(ids_1N, valid, torch.tensor(positions)[None], sources, parts=parts)
    return Packing(batch, sequences, torch.from_numpy(np.stack(place_RS)))
