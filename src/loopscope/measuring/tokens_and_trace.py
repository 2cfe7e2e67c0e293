"""Single reference tokens: as updates of their own, at the model's exit gate, and after every loop.

The first two are the paper's "Token-Level Audit of Early Recurrent Updates" (appendix): utility is the log probability
of one token, and A, Q, ΔU are along that position's own displacement where the readout is affine, along the whole
sequence's otherwise. The trace holds what a policy has access to at every reference position after every loop. States
are looked at as they come, and their logits a chunk of tokens at a time, next to those of the depth before.

Shapes: N reference tokens of a batch, n of a chunk, R sequences, S positions, D hidden width, V vocabulary, T loops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.readouts import CHUNK, LOGITS, Readout, UpdatePaths
from loopscope.measuring.update import Columns, Layout
from loopscope.models.protocol import ExitGate, exit_gate_of
from loopscope.readout.blocks import blocks
from loopscope.readout.softmax import Softmax, SoftmaxChange, likeliest
from loopscope.store.schema import GAIN_SCALES, TRACE_COLUMNS, Level, ends_of

_STORED = {"float32": torch.float32, "int32": torch.int32}


class ExitGateTrace:
    """Where the exit policy of a model's gate would stop at each reference token.

    Published arithmetic is that of the states. The FP64 reconstruction runs the same policy on FP64 logits.
    """

    def __init__(self, gate: ExitGate, layout: Layout, threshold: float | None) -> None:
        self._gate, self._threshold = gate, gate.threshold if threshold is None else threshold
        self._layout = layout
        self._published: list[Tensor] = []
        self._rebuilt: list[Tensor] = []

    def see(self, depth: int, state_RSD: Tensor) -> None:
        """Take note of the gate's logits; depths beyond the budget do not count."""
        if 1 <= depth <= self._gate.budget:
            self._published.append(self._layout.predicting(self._gate.logits(state_RSD, None)))
            h_ND = self._layout.predicting(state_RSD)
            self._rebuilt.append(self._gate.logits(h_ND[None], torch.float64)[0])

    def finish(self, updates: Mapping[int, dict[str, Columns]]) -> None:
        """Add the policy's decisions to the rows of `tokens`, by transition, once the whole budget was seen."""
        compared_NT = self._gate.compared(self._published)
        depths = {
            "exit_depth": self._gate.exit_depth(compared_NT, self._threshold),
            "exit_depth_fp64": self._gate.exit_depth(self._gate.compared(self._rebuilt), self._threshold),
        }
        # What the policy compares at t, an exit CDF or a confidence: 0 before the first loop, the last beyond T.
        at_TN = [torch.zeros_like(compared_NT[..., 0]).double(), *compared_NT.double().unbind(-1)]
        for transition, tables in updates.items():
            tables["tokens"].update(exit_cdf=at_TN[min(ends_of(transition)[0], self._gate.budget)], **depths)


def token_identity(layout: Layout) -> Columns:
    """Which token of which option of which question each row is, and where it stands in the text."""
    found: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in ("row", "option", "token", "position")}
    spans: list[tuple[int, int] | None] = []
    for question in layout.questions:
        for option, sequence in enumerate(question.example.sequences):
            count = len(sequence.positions)
            found["row"].append(np.full(count, question.row))
            found["option"].append(np.full(count, option))
            found["token"].append(np.arange(count))
            found["position"].append(np.asarray(sequence.positions))
            spans += [None] * count if question.spans is None else question.spans[option]
    missing = [span is None for span in spans]
    ends_N2 = np.array([span or (0, 0) for span in spans], dtype=np.int32).reshape(-1, 2)
    return {
        **{name: np.concatenate(parts) for name, parts in found.items()},
        "token_id": layout.targets_N,
        "text_start": np.ma.array(ends_N2[:, 0], mask=missing),
        "text_end": np.ma.array(ends_N2[:, 1], mask=missing),
    }


class Trace:
    """The rows of `trace` of a batch."""

    def __init__(self, readout: Readout, layout: Layout, settings: MeasureConfig) -> None:
        self._readout, self._layout, self._settings = readout, layout, settings
        self._gate = exit_gate_of(readout.model)
        self._found: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        self._before: Tensor = torch.empty(0)
        self._step_ND: Tensor | None = None

    def see(self, depth: int, state_RSD: Tensor) -> None:
        """Norms, angles, and what the logits give next to those of the depth before; nothing is read at depth 0."""
        if depth > self._settings.depths[-1]:
            return
        if depth:
            self._found[depth] |= self._of_states(state_RSD) | self._of_logits(depth, state_RSD)
        self._before = state_RSD

    def _of_logits(self, depth: int, state_RSD: Tensor) -> dict[str, Tensor]:
        states, lens = [state_RSD] if depth == 1 else [self._before, state_RSD], self._settings.lens
        found: list[dict[str, Tensor]] = []
        for chunk in self._readout.chunks(states, self._layout):
            most = max(1, CHUNK.get(state_RSD.device.type, LOGITS) // chunk.logits[0].shape[1])
            for rows in blocks(len(chunk.targets_n), most):
                *before, now = (Softmax(_wide(z_nV[rows])) for z_nV in chunk.logits)
                found.append(prediction_columns(now, before[0] if before else None, chunk.targets_n[rows], lens))
        return {name: torch.cat([columns[name] for columns in found]) for name in found[0]}

    def _of_states(self, state_RSD: Tensor) -> dict[str, Tensor]:
        before_ND, h_ND = (_wide(self._layout.predicting(state)) for state in (self._before, state_RSD))
        step_before_ND, self._step_ND = self._step_ND, h_ND - before_ND
        found = {
            "state_norm": _norm(h_ND),
            "step_norm": _norm(self._step_ND),
            "state_cosine": _cosine(h_ND, before_ND),
        }
        if step_before_ND is not None:
            found["acceleration"] = _norm(self._step_ND - step_before_ND)
            found["step_cosine"] = _cosine(self._step_ND, step_before_ND)
        if self._gate is not None:
            found["gate"] = self._layout.predicting(self._gate.logits(state_RSD, None)).sigmoid()
        return found

    def see_update(self, transition: int, paths: UpdatePaths) -> None:
        """What fractions of the step gained each token, where the grid is known."""
        if self._settings.level is not Level.QUICK:
            self._found[transition + 1]["gains"] = paths.tokens.at_scales(list(GAIN_SCALES), 0)[0]

    def finish(self) -> list[dict[str, Columns]]:
        """The columns of every depth, one row per reference token."""
        names = [q.example.id for q in self._layout.questions for _ in range(q.example.prediction_count)]
        identity = {**token_identity(self._layout), "example_id": np.asarray(names, dtype=object)}
        return [{"trace": {**identity, **self._columns(depth)}} for depth in sorted(self._found)]

    def _columns(self, depth: int) -> Columns:
        count, found = len(self._layout.targets_N), self._found[depth]
        columns: Columns = {"depth": np.full(count, depth)}
        for column in TRACE_COLUMNS:
            if column.name in found:
                columns[column.name] = found[column.name].to(_STORED[column.element])
            elif not column.is_list and column.name != "rank":
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


def _wide(values: Tensor) -> Tensor:
    """States or logits in the arithmetic of their norms or softmax."""
    return values.double() if values.device.type == "cpu" or values.dtype == torch.float64 else values.float()


def _dot(a_ND: Tensor, b_ND: Tensor) -> Tensor:
    return (a_ND * b_ND).sum(1, dtype=torch.float64)


def _norm(a_ND: Tensor) -> Tensor:
    return _dot(a_ND, a_ND).sqrt()


def _cosine(a_ND: Tensor, b_ND: Tensor) -> Tensor:
    both_N = _norm(a_ND) * _norm(b_ND)
    return torch.where(both_N > 0, _dot(a_ND, b_ND) / both_N, 0.0).clamp(-1.0, 1.0)
