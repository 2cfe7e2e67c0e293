"""Every reference position after every loop: what a policy may see there, and what the model would say.

States are looked at as they come. Logits wait: what they follow from (`kept_states`) is kept for a window of depths,
and then chunk by chunk every depth of the window is read once, beside the one before. So memory is bounded by the
window and the chunk, whatever the number of loops.

Shapes: N reference tokens of the batch, n of a chunk, R sequences, S positions, D hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from loopscope.measuring.kept_states import Chunk, kept_states
from loopscope.measuring.layout import Layout
from loopscope.measuring.reading import GeneralReadout
from loopscope.measuring.settings import Settings
from loopscope.measuring.tokens import token_identity
from loopscope.measuring.transfer import Columns
from loopscope.measuring.update import predicting
from loopscope.models.exit_gate import exit_gate_of
from loopscope.readout.affine.sources import full_precision_products
from loopscope.readout.path import UtilityPath
from loopscope.readout.softmax import Softmax, SoftmaxChange, likeliest
from loopscope.store.schema import GAIN_SCALES, TRACE_COLUMNS, ColumnType

_WINDOW = 1 << 30
"""Bytes that are kept of states before their logits are read."""


class Trace:
    """The rows of `trace` of a batch, collected on the way to the deepest loop."""

    def __init__(self, readout: GeneralReadout, layout: Layout, settings: Settings) -> None:
        self._readout, self._layout, self._lens = readout, layout, settings.lens
        self._gate = exit_gate_of(readout.model)
        self._kept_states = kept_states(readout, layout)
        self._window: dict[int, Tensor] = {}
        self._read: set[int] = set()
        self._found: dict[int, dict[str, Tensor]] = {}
        self._h_ND: Tensor | None = None
        self._step_ND: Tensor | None = None

    def see(self, depth: int, state_RSD: Tensor) -> None:
        """Take note of a state; depths come in order, from 0."""
        before_ND, step_before_ND = self._h_ND, self._step_ND
        self._h_ND = _wide(predicting(state_RSD, self._layout))
        if before_ND is None:
            return
        self._step_ND = self._h_ND - before_ND
        found = {
            "state_norm": _norm(self._h_ND),
            "step_norm": _norm(self._step_ND),
            "state_cosine": _cosine(self._h_ND, before_ND),
        }
        if step_before_ND is not None:
            found["acceleration"] = _norm(self._step_ND - step_before_ND)
            found["step_cosine"] = _cosine(self._step_ND, step_before_ND)
        if self._gate is not None:
            found["gate"] = predicting(self._gate.logits(state_RSD, None), self._layout).sigmoid()
        self._note(depth).update(found)
        with full_precision_products():
            self._window[depth] = kept = self._kept_states.keep(state_RSD)
        if len(self._window) > 2 and kept.nbytes * len(self._window) > _WINDOW:
            self._read_window()

    def gained(self, depth: int, path: UtilityPath) -> None:
        """What fractions of the step to a depth gained each token; asked once the path knows its grid."""
        self._note(depth)["gains"] = path.at_scales(list(GAIN_SCALES), 0)[0]

    def settle(self) -> list[Columns]:
        """The columns of every depth, one row per reference token."""
        self._read_window()
        identity = _identity(self._layout)
        return [{**identity, **self._columns(depth)} for depth in sorted(self._found)]

    def _note(self, depth: int) -> dict[str, Tensor]:
        return self._found.setdefault(depth, {})

    def _read_window(self) -> None:
        """Read what was kept; the last depth stays for the first of the next window."""
        read: dict[int, list[dict[str, Tensor]]] = {depth: [] for depth in self._window}
        with full_precision_products():
            for chunk in self._kept_states.chunks():
                for depth, columns in self._read_chunk(chunk):
                    read[depth].append(columns)
        for depth, chunks in read.items():
            if depth not in self._read:
                self._read.add(depth)
                self._note(depth).update({name: torch.cat([columns[name] for columns in chunks]) for name in chunks[0]})
        last = max(self._window)
        self._window = {last: self._window[last]}

    def _read_chunk(self, chunk: Chunk) -> Iterator[tuple[int, dict[str, Tensor]]]:
        targets_n = self._layout.targets_N[chunk.tokens]
        before: Softmax | None = None
        for depth, kept in self._window.items():
            now = Softmax(_entries(chunk.logits(kept)))
            if depth not in self._read:
                yield depth, prediction_columns(now, before, targets_n, self._lens)
            before = now

    def _columns(self, depth: int) -> Columns:
        count, found = len(self._layout.targets_N), self._found[depth]
        columns: Columns = {"depth": np.full(count, depth)}
        for column in TRACE_COLUMNS:
            if column.name in found:
                columns[column.name] = found[column.name].to(_STORED[column.type.element])
            elif not column.type.is_list and column.name != "rank":
                columns[column.name] = np.ma.array(np.zeros(count, np.float32), mask=True)
        return columns


def prediction_columns(now: Softmax, before: Softmax | None, targets_n: Tensor, lens: int) -> dict[str, Tensor]:
    """What the logits of a depth, and of the depth before, give at some tokens, [n] or [n, K] each."""
    found = {
        "log_prob": now.log_probability(targets_n),
        "top_id": now.top_id_n,
        "top_prob": now.top_probability_n,
        "margin": now.margin_n,
        "entropy": now.entropy_n,
    }
    if lens:
        candidates = likeliest(now.z_nV, min(lens, now.z_nV.shape[1]))
        found["lens_ids"], found["lens_probs"] = candidates.ids_nK, now.probability(candidates.logits_nK)
        found["rank"] = now.rank(targets_n)
    if before is not None:
        change = SoftmaxChange(before, now)
        found |= {
            "kl_from_previous": change.divergence_n,
            "kl_to_previous": change.reverse_divergence_n,
            "kl_min_p": change.min_p_divergence_n,
            "mean_v": change.mean_n,
            "var_v": change.variance_n,
            "v_reference": now.logit(targets_n) - before.logit(targets_n),
        }
    return found


_STORED = {ColumnType.FLOAT32: torch.float32, ColumnType.INT32: torch.int32}


def _wide(h_ND: Tensor) -> Tensor:
    """States in the arithmetic of their norms."""
    return h_ND.double() if h_ND.device.type == "cpu" or h_ND.dtype == torch.float64 else h_ND.float()


def _entries(z_nV: Tensor) -> Tensor:
    """Logits in the arithmetic of their softmax."""
    return z_nV.double() if z_nV.device.type == "cpu" or z_nV.dtype == torch.float64 else z_nV.float()


def _dot(a_ND: Tensor, b_ND: Tensor) -> Tensor:
    return (a_ND * b_ND).sum(1, dtype=torch.float64)


def _norm(a_ND: Tensor) -> Tensor:
    return _dot(a_ND, a_ND).sqrt()


def _cosine(a_ND: Tensor, b_ND: Tensor) -> Tensor:
    both_N = _norm(a_ND) * _norm(b_ND)
    return torch.where(both_N > 0, _dot(a_ND, b_ND) / both_N, 0.0).clamp(-1.0, 1.0)


def _identity(layout: Layout) -> Columns:
    """As `token_identity`, in arrays, with the names of the examples."""
    columns = token_identity(layout)
    names = [q.example.id for q in layout.questions for _ in range(q.example.prediction_count)]
    columns["example_id"] = np.asarray(names, dtype=object)
    for name in ("text_start", "text_end"):
        places = columns[name]
        missing = [place is None for place in places]
        columns[name] = np.ma.array([place or 0 for place in places], dtype=np.int32, mask=missing)
    return columns
