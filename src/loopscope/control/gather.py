"""States and signals of reference positions, loop by loop, for heads to be trained and tested on.

A stored trace has no states: D numbers for every position and loop are too many to keep beside a run. `gather` makes
one pass of the model over encoded examples of one sequence each and keeps both in memory: the trace as
`loopscope.control.trace` reads it, computed by the formulas of `loopscope.control.signals`, and the states in half
precision, which heads normalise anyway.

Shapes: R reference positions, T loops, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopscope.control.policy import SIGNALS
from loopscope.control.signals import LiveSignals, States
from loopscope.control.trace import SCALES, Trace
from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.exit_gate import exit_gate_of
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk, read
from loopscope.tasks.encoding import Example

BATCH = 16
"""Sequences of a batch."""


@dataclass(frozen=True)
class Gathered:
    """A trace and its states.

    Attributes:
        trace: as it would have been recorded.
        states: H_0 … H_T at the reference positions, float16, [T + 1, R, D].
        trained_depth: of the model.
        model: its name.
        boundary: where its state is taken.
    """

    trace: Trace
    states: NDArray[np.float16]
    trained_depth: int
    model: str
    boundary: str


@torch.no_grad()
def gather(
    model: LoopedModel,
    examples: Sequence[Example],
    loops: int,
    *,
    scales: Collection[int] = (),
    signals: Sequence[str] = SIGNALS,
    batch: int = BATCH,
) -> Gathered:
    """One pass over some examples.

    Args:
        model: a looped model of any family.
        examples: encoded questions of one reference solution each, as a task's `encode` gives them.
        loops: T.
        scales: the loops whose steps are read at the five scales, too.
        signals: which signals to compute; those of logits take the most time.
        batch: sequences of a batch.
    """
    if not examples or any(example.answer is not None for example in examples):
        raise LoopscopeError("heads learn from tasks with reference solutions: give examples of such a task")
    widths = np.array([len(example.sequences[0].token_ids) for example in examples])
    order = np.argsort(widths, kind="stable")
    parts = []
    for start in range(0, len(order), batch):
        chosen = [int(index) for index in order[start : start + batch]]
        parts.append(_batch(model, [examples[i] for i in chosen], chosen, loops, scales, signals))
    question_R = np.concatenate([part["question"] for part in parts])
    rank = np.argsort(question_R, kind="stable")
    columns = {
        name: np.concatenate([part[name] for part in parts])[rank]
        for name in parts[0]
        if name not in ("question", "target", "states")
    }
    trace = Trace(
        columns,
        question_R[rank],
        question_R[rank],
        np.concatenate([part["target"] for part in parts])[rank],
        np.arange(len(examples)),
        np.ones(len(examples), dtype=bool),
        tuple(example.id for example in examples),
    )
    states = np.concatenate([part["states"] for part in parts], axis=1)[:, rank]
    return Gathered(trace, states, model.trained_depth, model.name, model.boundary)


def _batch(
    model: LoopedModel,
    examples: Sequence[Example],
    numbers: Sequence[int],
    loops: int,
    scales: Collection[int],
    signals: Sequence[str],
) -> dict[str, NDArray[Any]]:
    sequences = [example.sequences[0] for example in examples]
    batch = Batch.from_rows(
        [list(sequence.token_ids) for sequence in sequences],
        source_rows=[example.source_row for example in examples],
    ).to(model.device)
    counts = [len(sequence.positions) for sequence in sequences]
    rows_R = torch.tensor(np.repeat(np.arange(len(sequences)), counts), device=model.device)
    places_R = torch.tensor(np.concatenate([sequence.positions for sequence in sequences]), device=model.device)
    targets_R = torch.tensor(np.concatenate([sequence.targets for sequence in sequences]), device=model.device)
    positions_R2 = torch.stack([rows_R, places_R], dim=1)
    gate = exit_gate_of(model)
    walk = Walk.of(model, batch)
    states, logits = [walk.state[rows_R, places_R].float()], dict[int, Tensor]()
    found: dict[str, list[Tensor]] = {}
    for depth in range(1, loops + 1):
        before = walk.state
        walk.advance()
        states.append(walk.state[rows_R, places_R].float())
        logits[depth] = walk.read(positions_R2, torch.float32)
        logits.pop(depth - 2, None)
        now = None if gate is None else gate.logits(walk.state, None).sigmoid()[rows_R, places_R].float()
        live = LiveSignals(depth, States(*states[-1:-4:-1]), logits.__getitem__, now)
        columns = {name: live(name) for name in signals}
        columns |= _reference(live, depth, logits, targets_R)
        inside = depth in scales and depth > 1
        for scale in SCALES[1:-1]:
            name = f"gain_{round(100 * scale)}"
            columns[name] = torch.full_like(columns["log_prob"], torch.nan)
            if inside and model.head is not None:
                z_RV = logits[depth - 1] + scale * (logits[depth] - logits[depth - 1])
                columns[name] = _log_prob(z_RV, targets_R) - _log_prob(logits[depth - 1], targets_R)
            elif inside:
                z_RV = read(model, before + scale * (walk.state - before), positions_R2, torch.float32, walk.context)
                columns[name] = _log_prob(z_RV, targets_R) - _log_prob(logits[depth - 1], targets_R)
        for name, column in columns.items():
            found.setdefault(name, []).append(column)
    gathered: dict[str, NDArray[Any]] = {name: torch.stack(c, dim=1).cpu().numpy() for name, c in found.items()}
    gathered["question"] = np.repeat(np.asarray(numbers), counts)
    gathered["target"] = targets_R.cpu().numpy()
    gathered["states"] = torch.stack(states).half().cpu().numpy()
    return gathered


def _reference(live: LiveSignals, depth: int, logits: dict[int, Tensor], targets_R: Tensor) -> dict[str, Tensor]:
    log_prob_R = _log_prob(logits[depth], targets_R)
    missing_R = torch.full_like(log_prob_R, torch.nan)
    if depth == 1:
        return {"log_prob": log_prob_R, "v_reference": missing_R}
    v_R = (logits[depth] - logits[depth - 1]).gather(1, targets_R[:, None])[:, 0]
    return {"log_prob": log_prob_R, "v_reference": v_R}


def _log_prob(z_RV: Tensor, targets_R: Tensor) -> Tensor:
    return z_RV.gather(1, targets_R[:, None])[:, 0] - z_RV.logsumexp(dim=-1)
