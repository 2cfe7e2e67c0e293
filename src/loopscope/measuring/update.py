"""A batch on its device: where its reference tokens are, one update H → H⁺ as plain data, what its states alone say.

A `Layout` is about sequences in rows of their own; what a model ran may have been packed (`models.packing`).

On a GPU a blocking copy waits for everything that was asked of the device before. So index tensors go up in one copy,
results come down in one per dtype, both through pinned memory, and the host waits only when it needs the numbers, a
batch later. Until then a column may be a tensor on the device or a `HostColumn`; `PendingColumns` brings all of them to
the host. On a CPU nothing is copied at all.

State diagnostics (Appendix "State and Output Diagnostics") are Frobenius norms over all valid positions; the states of
all options of a question are concatenated.

    ‖D‖,   ‖D‖ / (‖H‖ + 1e-12),   1 − ⟨H, H⁺⟩ / (‖H‖ ‖H⁺‖)

Interventions (Appendix "Immediate Quadratic Scale Selection"): H + αD is interpolated in FP32 and rounded to BF16, so
that its gain is that of a state which the model's arithmetic can hold, not of the ideal interpolant.

Shapes: N reference tokens, R sequences, B questions, S positions, D hidden width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from loopscope.measuring.batching import Question, groups_within
from loopscope.models.batch import Batch, Packing
from loopscope.models.protocol import Context
from loopscope.path import scale_case
from loopscope.readout.options import OptionGroups


def upload(arrays: Sequence[Any], device: torch.device) -> list[Tensor]:
    """Integer arrays as int64 tensors on the device, by one copy.

    Each begins at a multiple of 16 bytes: kernels are compiled for memory that does, and once more for other.
    """
    whole = [np.asarray(numbers, dtype=np.int64) for numbers in arrays]
    sizes = [numbers.size + numbers.size % 2 for numbers in whole]
    flat = torch.zeros(sum(sizes), dtype=torch.int64, pin_memory=device.type == "cuda")
    for place, numbers in zip(torch.split(flat, sizes), whole, strict=True):
        place.numpy()[: numbers.size] = numbers.reshape(-1)
    sent = torch.split(flat.to(device, non_blocking=True), sizes)
    return [tensor[: numbers.size].reshape(numbers.shape) for tensor, numbers in zip(sent, whole, strict=True)]


def pinned(packing: Packing) -> Packing:
    """The same packing in memory from which `Packing.to` does not wait for a GPU."""
    batch = packing.batch.moved(Tensor.pin_memory)
    sequences = batch if packing.sequences is packing.batch else packing.sequences.moved(Tensor.pin_memory)
    return Packing(batch, sequences, None if packing.place_RS is None else packing.place_RS.pin_memory())


Columns: TypeAlias = dict[str, Any]
"""NumPy arrays (masked where null) or lists, all of one length; before that, tensors and `HostColumn`."""


class HostColumn(NamedTuple):
    """A column that is computed on the host, from the columns before it and from tensors of any length."""

    function: Callable[..., Any]
    tensors: tuple[Tensor, ...] = ()


class PendingColumns:
    """Columns whose tensors are being copied to the host.

    >>> import torch
    >>> b = HostColumn(lambda columns, c: columns["a"] + c, (torch.ones(2),))
    >>> (found,) = PendingColumns([{"a": torch.arange(2), "b": b}]).columns()
    >>> {name: values.tolist() for name, values in found.items()}
    {'a': [0, 1], 'b': [1.0, 2.0]}
    """

    def __init__(self, tables: Sequence[Columns]) -> None:
        self._tables = [
            {
                name: HostColumn(lambda _, array: array, (value,)) if isinstance(value, Tensor) else value
                for name, value in t.items()
            }
            for t in tables
        ]
        values = [value for table in self._tables for value in table.values() if isinstance(value, HostColumn)]
        tensors = [tensor.detach() for value in values for tensor in value.tensors]
        found: dict[int, np.ndarray[Any, Any]] = {}
        for dtype in {tensor.dtype for tensor in tensors}:
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = torch.cat([tensors[place].reshape(-1) for place in places])
            if flat.is_cuda:
                flat = torch.empty(flat.shape, dtype=dtype, pin_memory=True).copy_(flat, non_blocking=True)
            pieces = torch.split(flat, [tensors[place].numel() for place in places])
            # Views: their numbers are there when the copy is.
            found |= {
                place: piece.numpy().reshape(tensors[place].shape) for place, piece in zip(places, pieces, strict=True)
            }
        self._arrays = [found[place] for place in range(len(tensors))]
        on_gpu = [tensor.device for tensor in tensors if tensor.is_cuda]
        self._done = torch.cuda.current_stream(on_gpu[0]).record_event() if on_gpu else None

    def is_finite(self) -> bool:
        """Whether every number is finite, once some of `columns` are here."""
        return all(np.isfinite(values).all() for values in self._arrays if values.dtype.kind == "f")

    def columns(self) -> Iterator[Columns]:
        """Table by table with arrays and lists only, when the numbers are on the host."""
        if self._done is not None:
            self._done.synchronize()
        arrays = iter(self._arrays)
        for table in self._tables:
            columns: Columns = {}
            for name, value in table.items():
                if isinstance(value, HostColumn):
                    columns[name] = value.function(columns, *[next(arrays) for _ in value.tensors])
                else:
                    columns[name] = value
            yield columns


def array(values: Tensor) -> np.ndarray[Any, Any]:
    """A result on the host; waits for the device."""
    return values.detach().cpu().numpy()


def pairs(
    low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], where: np.ndarray[Any, Any] | bool = True
) -> list[list[float] | None]:
    """A list column of two numbers; null where one of them is not finite, and outside of `where`."""
    both = np.stack([low, high], 1)
    known: np.ndarray[Any, Any] = np.isfinite(both).all(1) & where
    return [pair if is_known else None for pair, is_known in zip(both.tolist(), known.tolist(), strict=True)]


def stacked(tables: Sequence[Columns]) -> Columns:
    """The rows of several tables, one after the other; a column that a table lacks is null there.

    >>> stacked([{"a": [1], "b": [2]}, {"a": [3]}])
    {'a': [1, 3], 'b': [2, None]}
    """
    names = dict.fromkeys(name for table in tables for name in table)
    lengths = [len(next(iter(table.values()), ())) for table in tables]
    found: Columns = {}
    for name in names:
        parts = [table.get(name, [None] * length) for table, length in zip(tables, lengths, strict=True)]
        if all(isinstance(part, np.ndarray) for part in parts):
            masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
            join: Any = np.ma.concatenate if masked else np.concatenate
            found[name] = join(parts)
        else:
            found[name] = [cell for part in parts for cell in (part.tolist() if isinstance(part, np.ndarray) else part)]
    return found


_INDICES = ("positions_N2", "targets_N", "sequence_N", "tokens_R", "question_R", "sequences_B")


@dataclass(frozen=True)
class Layout:
    """Index tensors of one batch, on the model's device; tokens and sequences stand in order.

    Everything is worked out on the host and sent to the device once, so that nothing here waits for it.

    Attributes:
        questions: the questions of the batch, in order.
        batch: their sequences, one to a row.
        positions_N2: (row, position) whose logits predict each reference token.
        targets_N: those tokens.
        sequence_N: the sequence that each belongs to.
        tokens_R: reference tokens of each sequence.
        question_R: the question that each sequence belongs to.
        sequences_B: sequences of each question.
        options: the sequences of each question and the right one among them; None for reference solutions.
        counts: reference tokens of each sequence, on the host.
        context: what the model made of these sequences, for a readout that asks for it; else None.
    """

    questions: tuple[Question, ...]
    batch: Batch
    positions_N2: Tensor
    targets_N: Tensor
    sequence_N: Tensor
    tokens_R: Tensor
    question_R: Tensor
    sequences_B: Tensor
    options: OptionGroups | None
    counts: tuple[int, ...]
    context: Context | None = None

    @classmethod
    def of(cls, questions: Sequence[Question], batch: Batch, device: torch.device) -> Layout:
        """The layout of `batch`, which holds the sequences of `questions` in order."""
        sequences = [sequence for q in questions for sequence in q.example.sequences]
        counts = [len(s.positions) for s in sequences]
        rows = np.repeat(np.arange(len(sequences)), counts)
        places = np.concatenate([np.asarray(s.positions) for s in sequences])
        targets = np.concatenate([np.asarray(s.targets) for s in sequences])
        shares = [len(q.example.sequences) for q in questions]
        owners = np.repeat(np.arange(len(questions)), shares)
        answers = [q.example.answer for q in questions]
        indices = [np.stack([rows, places], axis=1), targets, rows, counts, owners, shares]
        is_options = answers[0] is not None
        if is_options:
            first = np.cumsum(shares) - shares
            member = first[:, None] + np.minimum(np.arange(max(shares)), np.asarray(shares)[:, None] - 1)
            present = np.arange(max(shares)) < np.asarray(shares)[:, None]
            indices += [member, present, answers]
        tensors = upload(indices, device)
        options = OptionGroups(tensors[4], tensors[6], tensors[7].bool(), tensors[8]) if is_options else None
        named: dict[str, Any] = dict(zip(_INDICES, tensors, strict=False))
        return cls(tuple(questions), batch.to(device), **named, options=options, counts=tuple(counts))

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence, on the host."""
        return [len(sequence.token_ids) for question in self.questions for sequence in question.example.sequences]

    def predicting(self, state_RSD: Tensor) -> Tensor:
        """The states whose logits predict the reference tokens, [N, D]."""
        row, place = self.positions_N2.unbind(1)
        return state_RSD[row, place]

    def question_largest(self, values_R: Tensor) -> Tensor:
        """The largest over the sequences of every question: [R] → [B]."""
        found_B = values_R.new_full((len(self.questions),), -torch.inf)
        return found_B.scatter_reduce(0, self.question_R, values_R, "amax")


def ordered_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums of consecutive segments, each added up in order: the same bits every time, on every device."""
    flat = values.reshape(values.shape[0], -1).contiguous()
    # Not asked to check the lengths, which are right by construction: it would wait for the device.
    summed = torch.segment_reduce(flat, "sum", lengths=lengths, axis=0, unsafe=True)
    return summed.reshape(-1, *values.shape[1:])


def ordered_mean(values: Tensor, lengths: Tensor) -> Tensor:
    """Means of consecutive segments: over the tokens of sequences, or the sequences of questions."""
    summed = ordered_sum(values, lengths)
    return summed / lengths.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))


@dataclass(frozen=True)
class Update:
    """The states of a batch before and after an update, and where its reference tokens are."""

    layout: Layout
    before_RSD: Tensor
    after_RSD: Tensor

    def groups(self, most: int, chosen: Sequence[int] | None = None) -> Iterator[Update]:
        """The chosen questions (all of them if left out), at most `most` reference tokens or one question at a time."""
        chosen = range(len(self.layout.questions)) if chosen is None else chosen
        counts = [self.layout.questions[index].example.prediction_count for index in chosen]
        for group in groups_within(counts, most):
            yield self if len(group) == len(self.layout.questions) else self.some([chosen[place] for place in group])

    def some(self, chosen: Sequence[int]) -> Update:
        """The same update of the questions `chosen` alone, in rows as wide as these."""
        layout, batch = self.layout, self.layout.batch
        shares = [len(question.example.sequences) for question in layout.questions]
        first = np.cumsum(shares) - shares
        (rows,) = upload([np.concatenate([first[i] + np.arange(shares[i]) for i in chosen])], self.before_RSD.device)
        ids, mask = batch.input_ids[rows], batch.attention_mask[rows]
        some = Batch(ids, mask, padding=batch.padding, highest_id=batch.highest_id)
        context = None if layout.context is None else layout.context.rows(rows)
        of_some = Layout.of([layout.questions[i] for i in chosen], some, ids.device)
        return Update(dataclasses.replace(of_some, context=context), self.before_RSD[rows], self.after_RSD[rows])


def predicted_scale(slope: Tensor, quadratic: Tensor) -> Tensor:
    """α̂ = min argmax over [0, 1] of Aα + Qα² (Eq. predicted-step), by the same rule (`scale_case`), to the bit.

    What is not finite is not refused here; it is where the columns are put together on the host.

    >>> predicted_scale(torch.tensor([0.5, -0.5, 4.0, 1.0]), torch.tensor([-1.0, -1.0, -1.0, 0.0])).tolist()
    [0.25, 0.0, 1.0, 1.0]
    """
    case = scale_case(slope, quadratic)
    half = 0.5 * (slope / torch.where(case.interior, -quadratic, 1.0))
    return torch.where(case.at_one, 1.0, torch.where(case.interior, half, 0.0))


def state_change(update: Update) -> tuple[Tensor, Tensor, Tensor]:
    """How far the update moved the states of each question: ‖D‖, relative and cosine change, float64 [B]."""
    found = []
    # A few rows at a time: what is made in between stays in the cache. D and squares are FP32, of float64 states FP64.
    for h, h_plus in zip(torch.split(update.before_RSD, 8), torch.split(update.after_RSD, 8), strict=True):
        a, b = (h, h_plus) if h.dtype == torch.float64 else (h.float(), h_plus.float())
        found.append(torch.stack([(x * x).sum(-1, dtype=torch.float64) for x in (a, b, b - a)]))
    at_positions = torch.where(update.layout.batch.attention_mask, torch.cat(found, 1), 0.0)
    squares = ordered_sum(at_positions.sum(-1).T, update.layout.sequences_B)
    norm_h, norm_plus, norm_d = squares.sqrt().unbind(1)
    both = norm_h * norm_plus
    # 1 − cos loses its digits for small angles; with unit vectors u and u⁺ it is ‖u − u⁺‖²/2, which does not:
    # ‖D‖² = (‖H‖ − ‖H⁺‖)² + 2 ‖H‖ ‖H⁺‖ (1 − cos).
    angular = (norm_d**2 - (norm_h - norm_plus) ** 2).clamp(min=0.0) / (2.0 * both)
    cosine = torch.where(both > 0, angular, torch.zeros_like(both))
    return norm_d, norm_d / (norm_h + 1e-12), cosine


def interpolated(h: Tensor, h_plus: Tensor, scale: Tensor) -> Tensor:
    """H + αD in FP32, rounded to BF16 and returned in the states' dtype; `scale` broadcasts against the states."""
    start = h.float()
    mixed = start + scale.float() * (h_plus.float() - start)
    return mixed.to(torch.bfloat16).to(h.dtype)
