"""The rows of `trace` from one sequence after the other, unpadded, in float64: states, logits, formulas."""

from math import nan
from typing import Any

import polars as pl
import torch

from loopscope import Batch
from loopscope.control.policies import SIGNALS
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
        chance = None if gate is None else torch.sigmoid(gate.logits(walk.state, torch.float64)[0, places])
        told = by_formula(states, logits, chance)
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
                **{name: float(told[name][token]) if name in told else nan for name in (*SIGNALS, "gate")},
                "log_prob": float(own[token]),
                "v_reference": float(v_y[token]),
                "lens_ids": order[token, :lens].tolist(),
                "lens_probs": log_p[token].exp()[order[token, :lens]].tolist(),
                "rank": order[token].tolist().index(int(targets[token])) + 1,
            }
            for token in range(len(places))
        ]
    return found


def by_formula(
    states: list[torch.Tensor], logits: list[torch.Tensor | None], gate: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """The signals of the last state; what needs an earlier one than there is, is not among them."""
    h, before = states[-1], states[-2]
    z, z_before = logits[-1], logits[-2]
    assert z is not None
    p, ordered = z.softmax(1), z.softmax(1).sort(1, descending=True).values
    found = {
        "state_norm": torch.linalg.vector_norm(h, dim=1),
        "step_norm": torch.linalg.vector_norm(h - before, dim=1),
        "state_cosine": torch.cosine_similarity(h, before),
        "top_id": z.argmax(1),
        "top_prob": ordered[:, 0],
        "margin": ordered[:, 0] - ordered[:, 1],
        "entropy": torch.distributions.Categorical(logits=z).entropy(),
    }
    if len(states) > 2:
        last = before - states[-3]
        found["acceleration"] = torch.linalg.vector_norm(h - before - last, dim=1)
        found["step_cosine"] = torch.cosine_similarity(h - before, last)
    if gate is not None:
        found["gate"] = gate
    if z_before is not None:
        now, old = (torch.distributions.Categorical(logits=one) for one in (z, z_before))
        floored = [torch.where(x < 0.1 * x.amax(1, keepdim=True), 1 / x.shape[1], x) for x in (z_before.softmax(1), p)]
        v, weights = z - z_before, z_before.softmax(1)
        mean = (weights * v).sum(1)
        found |= {
            "kl_from_previous": torch.distributions.kl_divergence(old, now),
            "kl_to_previous": torch.distributions.kl_divergence(now, old),
            "kl_min_p": torch.distributions.kl_divergence(*(torch.distributions.Categorical(x) for x in floored)),
            "mean_v": mean,
            "var_v": (weights * (v - mean[:, None]) ** 2).sum(1),
        }
    return found
