"""The rows of `trace` from one sequence after the other, unpadded, in float64: states, logits, formulas."""

from typing import Any

import polars as pl
import torch

from loopscope.control import signals
from loopscope.models import Batch
from loopscope.models.walk import Walk, read
from loopscope.tasks.encoding import Example


def trace_by_formula(model: Any, examples: list[Example], deepest: int, lens: int) -> pl.DataFrame:
    """The expected rows in the order of the table, NaN for null; `model` is a float64 one."""
    found = []
    for row, example in enumerate(examples):
        for option, sequence in enumerate(example.sequences):
            batch = Batch.from_rows(
                [sequence.token_ids], source_rows=[example.source_row], prompt_lengths=[sequence.positions[0] + 1]
            )
            with torch.no_grad():
                found += _sequence(model, batch, sequence, {"row": row, "option": option}, deepest, lens)
    return pl.DataFrame(found).sort("row", "depth", "option", "token")


def _sequence(
    model: Any, batch: Batch, sequence: Any, key: dict[str, int], deepest: int, lens: int
) -> list[dict[str, Any]]:
    places, targets = torch.tensor(sequence.positions), torch.tensor(sequence.targets)
    walk, found = Walk.of(model, batch), []
    states = [walk.state[0, places]]
    logits: list[torch.Tensor | None] = [None]
    gate = getattr(model, "exit_gate", None)
    for depth in range(1, deepest + 1):
        walk.advance()
        states.append(walk.state[0, places])
        z = read(model, walk.state, None, torch.float64, walk.context)[0, places]
        logits.append(z)
        told = signals.LiveSignals(
            depth,
            states[::-1][:3],
            logits.__getitem__,
            None if gate is None else torch.sigmoid(gate.logits(walk.state, torch.float64)[0, places]),
        )
        log_p = z.log_softmax(1)
        own = log_p.gather(1, targets[:, None])[:, 0]
        order = z.argsort(dim=1, descending=True, stable=True)
        before = logits[depth - 1]
        v_y = torch.full_like(own, torch.nan) if before is None else (z - before).gather(1, targets[:, None])[:, 0]
        found += [
            {
                **key,
                "depth": depth,
                "token": token,
                "position": int(places[token]),
                "token_id": int(targets[token]),
                **{name: float(told(name)[token]) for name in (*signals.SIGNALS, "gate")},
                "log_prob": float(own[token]),
                "v_reference": float(v_y[token]),
                "lens_ids": order[token, :lens].tolist(),
                "lens_probs": log_p[token].exp()[order[token, :lens]].tolist(),
                "rank": order[token].tolist().index(int(targets[token])) + 1,
            }
            for token in range(len(places))
        ]
    return found
