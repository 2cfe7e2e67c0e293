"""Single reference tokens: as updates of their own, at the model's exit gate, and after every loop.

The first two are the paper's "Token-Level Audit of Early Recurrent Updates" (appendix): utility is the log probability
of one token, and A, Q, ΔU are along that position's own displacement where the readout is affine, along the whole
sequence's otherwise. The trace holds what a policy has access to at every reference position after every loop. States
are looked at as they come; their logits wait in a window of depths, and then every depth of the window is read chunk by
chunk, next to the one before. So memory is bounded by the window and the chunk, whatever the number of loops.

Shapes: N reference tokens of a batch, n of a chunk, R sequences, S positions, D hidden width, V vocabulary, T loops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.host_copies import Columns
from loopscope.measuring.readouts import LOGITS, Group, Readout, UpdatePaths
from loopscope.measuring.update import Layout, predicting
from loopscope.models.exit_gate import exit_gate_of
from loopscope.models.layers.linear import linear
from loopscope.models.protocol import BodyAndHead, LoopedModel
from loopscope.models.walk import halves, read
from loopscope.readout.affine.sources import blocks, full_precision_products
from loopscope.readout.softmax import Softmax, SoftmaxChange, likeliest
from loopscope.store.schema import GAIN_SCALES, TRACE_COLUMNS, Level, ends_of

_WINDOW = 1 << 30
"""Bytes that are kept of states before their logits are read."""
_CHUNK = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Logits of a deferred chunk, where not `LOGITS`; some ten arrays of that size exist at a time."""
_STORED = {"float32": torch.float32, "int32": torch.int32}


class StateObserver:
    """Sees every state of a pass, and adds to its tables when all of them were seen."""

    def see(self, depth: int, state_RSD: Tensor) -> None:
        """Take note of a state; depths come in order, from 0."""

    def see_update(self, transition: int, paths: UpdatePaths) -> None:
        """Take note of an analysed update, after both its states."""

    def finish(self, updates: Mapping[int, dict[str, Columns]]) -> Sequence[dict[str, Columns]]:
        """Complete the tables of the updates, by transition, and return others."""
        return ()


class ExitGateTrace(StateObserver):
    """Where the exit policy of a model's gate would stop at each reference token.

    Published arithmetic is that of the states. The FP64 reconstruction runs the same policy on FP64 logits.
    """

    def __init__(self, model: LoopedModel, layout: Layout, threshold: float | None) -> None:
        gate = exit_gate_of(model)
        assert gate is not None, "made for models with a gate"
        self._gate, self._threshold = gate, gate.threshold if threshold is None else threshold
        self._layout = layout
        self._published: list[Tensor] = []
        self._rebuilt: list[Tensor] = []

    @property
    def budget(self) -> int:
        """The loops that the policy must see."""
        return self._gate.budget

    def see(self, depth: int, state_RSD: Tensor) -> None:
        """Take note of the gate's logits; depths beyond the budget do not count."""
        if 1 <= depth <= self.budget:
            self._published.append(predicting(self._gate.logits(state_RSD, None), self._layout))
            h_ND = predicting(state_RSD, self._layout)
            self._rebuilt.append(self._gate.logits(h_ND[None], torch.float64)[0])

    def finish(self, updates: Mapping[int, dict[str, Columns]]) -> Sequence[dict[str, Columns]]:
        """Add the policy's decisions to the rows of `tokens`, once the whole budget was seen."""
        if len(self._published) == self.budget:
            compared_NT = self._gate.compared(self._published)
            depths = {
                "exit_depth": self._gate.exit_depth(compared_NT, self._threshold),
                "exit_depth_fp64": self._gate.exit_depth(self._gate.compared(self._rebuilt), self._threshold),
            }
            # What the policy compares at t, an exit CDF or a confidence: 0 before the first loop, the last beyond T.
            at_TN = [torch.zeros_like(compared_NT[..., 0]).double(), *compared_NT.double().unbind(-1)]
            for transition, tables in updates.items():
                at = min(ends_of(transition)[0], self.budget)
                tables["tokens"].update(exit_cdf=at_TN[at], **depths)
        return ()


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


class Trace(StateObserver):
    """The rows of `trace` of a batch."""

    def __init__(self, readout: Readout, layout: Layout, settings: MeasureConfig) -> None:
        self._layout, self._settings = layout, settings
        self._gate = exit_gate_of(readout.model)
        self._deferred = deferred_readout(readout, layout)
        self._window: dict[int, Tensor] = {}
        self._read: set[int] = set()
        self._found: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        self._h_ND: Tensor | None = None
        self._step_ND: Tensor | None = None

    def see(self, depth: int, state_RSD: Tensor) -> None:
        """Norms and angles at once; keep what the logits follow from."""
        if depth > self._settings.deepest:
            return
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
        self._found[depth].update(found)
        with full_precision_products():
            self._window[depth] = kept = self._deferred.keep(state_RSD)
        if len(self._window) > 2 and kept.nbytes * len(self._window) > _WINDOW:
            self._read_window()

    def see_update(self, transition: int, paths: UpdatePaths) -> None:
        """What fractions of the step gained each token, where the grid is known."""
        if self._settings.level is not Level.QUICK:
            self._found[transition + 1]["gains"] = paths.tokens.at_scales(list(GAIN_SCALES), 0)[0]

    def finish(self, updates: Mapping[int, dict[str, Columns]]) -> Sequence[dict[str, Columns]]:
        """The columns of every depth, one row per reference token."""
        self._read_window()
        names = [q.example.id for q in self._layout.questions for _ in range(q.example.prediction_count)]
        identity = {**token_identity(self._layout), "example_id": np.asarray(names, dtype=object)}
        return [{"trace": {**identity, **self._columns(depth)}} for depth in sorted(self._found)]

    def _read_window(self) -> None:
        """Read what was kept; the last depth stays for the first of the next window."""
        read: dict[int, list[dict[str, Tensor]]] = {depth: [] for depth in self._window}
        with full_precision_products():
            for tokens, logits in self._deferred.chunks():
                before: Softmax | None = None
                for depth, kept in self._window.items():
                    now = Softmax(_wide(logits(kept)))
                    if depth not in self._read:
                        targets_n, lens = self._layout.targets_N[tokens], self._settings.lens
                        read[depth].append(prediction_columns(now, before, targets_n, lens))
                    before = now
        for depth, chunks in read.items():
            if depth not in self._read:
                self._read.add(depth)
                self._found[depth].update(
                    {name: torch.cat([columns[name] for columns in chunks]) for name in chunks[0]}
                )
        last = max(self._window)
        self._window = {last: self._window[last]}

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


class Deferred(NamedTuple):
    """What is kept of a state so that its logits can be computed later.

    Attributes:
        keep: from a state to what the logits at the prediction positions follow from.
        chunks: all reference tokens in order, some at a time: which, and the map from what was kept to their logits.
    """

    keep: Callable[[Tensor], Tensor]
    chunks: Callable[[], Iterator[tuple[slice, Callable[[Tensor], Tensor]]]]


def deferred_readout(readout: Readout, layout: Layout) -> Deferred:
    """The one that keeps the least: predicting states [N, D], a body's outputs [N, D'], or whole states [R, S, D]."""
    model, dtype = readout.model, readout.dtype
    most = max(1, _CHUNK.get(model.device.type, LOGITS) // model.vocabulary_size)

    def halves_of(group: Group) -> BodyAndHead | None:
        return halves(model, dtype, layout.context_of(group.rows))

    if model.head is not None:
        weight_VD, bias_V = model.head
        # Products of 16-bit numbers are exact in float32: tensor cores multiply them as they are.
        half = weight_VD.dtype in (torch.bfloat16, torch.float16) and hasattr(torch.ops.aten.mm, "dtype")
        as_stored = weight_VD.is_cuda and half and dtype == torch.float32
        wide_VD = weight_VD if as_stored else weight_VD.to(dtype)  # once for all chunks and depths
        wide_V = None if bias_V is None else bias_V.to(dtype)

        def of_head(tokens: slice, h_ND: Tensor) -> Tensor:
            h_nD = h_ND[tokens]
            if not as_stored or h_nD.dtype != weight_VD.dtype:
                return linear(h_nD.to(dtype), wide_VD.to(dtype), wide_V)
            z_nV = torch.mm(h_nD, wide_VD.T, out_dtype=dtype)
            return z_nV if wide_V is None else z_nV.add_(wide_V)

        def by_head() -> Iterator[tuple[slice, Callable[[Tensor], Tensor]]]:
            return ((tokens, partial(of_head, tokens)) for tokens in blocks(len(layout.targets_N), most))

        return Deferred(partial(predicting, layout=layout), by_head)

    if halves_of(next(iter(readout.groups(layout)))) is not None:

        def bodies(state_RSD: Tensor) -> Tensor:
            found = []
            for group in readout.groups(layout):
                parts = halves_of(group)
                assert parts is not None, "a readout in halves stays one"
                found.append(parts.body(state_RSD[group.rows], group.positions_n2))
            return torch.cat(found)

        def by_body() -> Iterator[tuple[slice, Callable[[Tensor], Tensor]]]:
            for group in readout.groups(layout):
                parts, first = halves_of(group), group.tokens.start
                assert parts is not None, "a readout in halves stays one"
                for inside in blocks(group.tokens.stop - first, most):
                    tokens = slice(first + inside.start, first + inside.stop)
                    yield tokens, partial(_of_tokens, parts.head, tokens)

        return Deferred(bodies, by_body)

    def of_group(group: Group, state_RSD: Tensor) -> Tensor:
        return read(model, state_RSD[group.rows], group.positions_n2, dtype, layout.context_of(group.rows))

    return Deferred(
        lambda state: state,
        lambda: ((group.tokens, partial(of_group, group)) for group in readout.groups(layout, most)),
    )


def _of_tokens(head: Callable[[Tensor], Tensor], tokens: slice, body_ND: Tensor) -> Tensor:
    return head(body_ND[tokens])
