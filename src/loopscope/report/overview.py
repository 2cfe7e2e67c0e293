"""The first view: the clearest path, utility over depth, outcome shares, what steps of other lengths give.

Nothing is estimated here: tables come from `loopscope.studies`, means and their intervals from `loopscope.stats` with
the resamples of the paper (Section 4.1), step oracles from `loopscope.path`.

What the page opens with is chosen by the data: of every evaluation set its leading update, and of its finite-step
failures the path whose rise a and whose fall b are both large: the largest min(a, b)² / max(a, b), with a = max φ and
b = −φ(1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from loopscope.path import GRID, Outcome, oracles, uniform_grid
from loopscope.report.evaluation_set import EvaluationSet, snippet
from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies.conditions import Weights
from loopscope.studies.declare import Row, TableResult
from loopscope.studies.records import DepthSweep, Records, Updates
from loopscope.studies.runs import clearly, finding, leading_update
from loopscope.studies.topics.depths import first_decline

Tables = Mapping[str, TableResult]

NEEDED_TABLES = ("mechanism", "contraction", "quadratic-intervention", "certificates", "bound-selected")

STEPS = {
    "full": ("Full step", "The update as the model takes it."),
    "quarter": ("Quarter step", "A quarter of the update, for every question."),
    "quadratic": ("Quadratic step", "The length α̂ that slope A and curvature Q of the reference's utility predict."),
    "safe": (
        "Safe step",
        "The length for which a curvature bound guarantees a gain: 0.9\u00a0·\u00a02A/L_D, at most the full step.",
    ),
    "halt": ("Better end", "An oracle that may stay or take the full step."),
    "oracle": ("Best of five", "An oracle that may also take ¼, ½ or ¾ of it."),
    "best": ("Best scale", "An oracle that may take any scale of the FP64 path."),
}
"""Name and meaning of each step; the page says the meaning once."""
WITHOUT_REFERENCE = ("full", "quarter")
"""Steps that a model can take while it answers. A, Q and L_D are of the reference's log probability."""
FACTS = {
    "finite": ("Right direction, step too long", "Finite-step failures among the updates that lower the utility."),
    "sign_slope": (
        "Sign predicted by A",
        "How often slope A has the sign of the gain. It is taken with the reference, so it explains and does not "
        "decide; a coin has 50%.",
    ),
    "sign_quadratic": ("Sign predicted by A\u00a0+\u00a0Q", "The same for slope and curvature together."),
    "quarter": ("Recovered by a quarter step", "Finite-step failures that a quarter of the step turns into a gain."),
    "predicted": (
        "Recovered by α̂ (BF16)",
        "Finite-step failures that gain at the predicted length, the state rounded to BF16.",
    ),
    "certified": ("Certified outcomes", "Outcomes that no rounding of the readout can overturn."),
}
"""Name and meaning of the shares of an update; the page says the meaning once."""


def overview(data: EvaluationSet, records: Records, tables: Tables, bootstrap: Bootstrap) -> dict[str, Any]:
    """One evaluation set; `leading` is the place of its leading update, `finding` a sentence about it."""
    gains = [step_gains(updates, bootstrap) for updates in data.updates]
    leading = leading_update(data.updates, [each["full"] for each in gains])
    sweep = next((sweep for sweep in records.sweeps if sweep.condition.same_set(data.condition)), None)
    found = finding(data.updates[leading])
    return {
        "depth": None if sweep is None else depth_summary(sweep, bootstrap),
        "updates": [
            _update(updates, each, tables, bootstrap) for updates, each in zip(data.updates, gains, strict=True)
        ],
        "leading": leading,
        "declines": clearly(gains[leading]["full"]) < 0,
        "finding": found.sentence(f"Loop {found.update}"),
    }


def _update(updates: Updates, gains: Mapping[str, Estimate], tables: Tables, bootstrap: Bootstrap) -> dict[str, Any]:
    condition = updates.condition
    bounded = _row(tables, "bound-selected", updates, "primary")
    safe = bounded_gains(updates, bootstrap) if bounded is not None and bounded["n"] else None
    return {
        "transition": condition.transition,
        "update": condition.update,
        "n": condition.n,
        "outcomes": outcome_shares(updates, bootstrap),
        "steps": _steps(gains),
        "bounded": None if safe is None else {"n": safe["safe"].n, "steps": _steps(safe)},
        "facts": _facts(updates, tables),
    }


def _facts(updates: Updates, tables: Tables) -> list[dict[str, Any]]:
    found = []
    if (row := _row(tables, "mechanism", updates)) is not None:
        found.append(_fact("finite", row["share"], row["finite_step"], row["harmful"]))
        signs = {key: row[key] for key in ("sign_slope", "sign_quadratic")}
        found += [_fact(key, each, round((each.value or 0.0) * each.n), each.n) for key, each in signs.items()]
    for name, table, key in (("quarter", "contraction", ""), ("predicted", "quadratic-intervention", "quadratic")):
        if (row := _row(tables, table, updates, key)) is not None:
            found.append(_fact(name, row["recovery"], row["recovered"], row["failures"]))
    if (row := _row(tables, "certificates", updates)) is not None and row["share"] is not None:
        share = Estimate(row["share"], row["updates"])
        found.append(_fact("certified", share, row["certified"], row["updates"], of_certificates(row)))
    return found


def _row(tables: Tables, table: str, updates: Updates, key: str = "") -> Row | None:
    rows = tables[table].rows if table in tables else ()
    return next((row for row in rows if row.condition == updates.condition and row.key == key), None)


def step_gains(updates: Updates, bootstrap: Bootstrap) -> dict[str, Estimate]:
    """Mean φ over all questions at the scales of simple rules and of the oracles, from shared resamples."""
    statistics = {"full": Mean(updates.gain)}
    if updates.has("grid_gain"):
        chosen = oracles(uniform_grid(5), updates.grid_gain[:, ::5])
        statistics |= {
            "quarter": Mean(updates.quarter_gain),
            "halt": Mean(chosen.halt),
            "oracle": Mean(chosen.step),
        }
    if updates.has("quadratic_gain"):
        statistics["quadratic"] = Mean(updates.floats("quadratic_gain"))
    return bootstrap.estimate(statistics)


def bounded_gains(updates: Updates, bootstrap: Bootstrap) -> dict[str, Estimate]:
    """Mean FP64 gains over the questions of the table `bound-selected`: A > 0, Q < 0 and a safe scale.

    The best scale stands for the oracles here: the safe step is none of the five that "best of five" chooses from.
    """
    inside = updates.primary & ~np.isnan(updates.floats("fp64_safe_scale"))
    columns = {
        "full": "fp64_gain",
        "quarter": "fp64_quarter_gain",
        "safe": "fp64_safe_gain",
        "best": "fp64_optimum_gain_high",
    }
    return bootstrap.estimate({key: Mean(updates.floats(column)[inside]) for key, column in columns.items()})


def _steps(gains: Mapping[str, Estimate]) -> list[dict[str, Any]]:
    return [
        {"key": key, "label": label, "blind": key in WITHOUT_REFERENCE, **_numbers(gains[key])}
        for key, (label, _) in STEPS.items()
        if key in gains
    ]


def outcome_shares(updates: Updates, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """How many updates there are of every class, and their share with its interval."""
    shares = bootstrap.estimate({outcome: Mean(updates.outcome == outcome) for outcome in Outcome})
    counts = {outcome: int((updates.outcome == outcome).sum()) for outcome in Outcome}
    return [{"label": each.label, "count": counts[each], **_numbers(shares[each])} for each in Outcome]


def depth_summary(sweep: DepthSweep, bootstrap: Bootstrap) -> dict[str, Any]:
    """Mean utility at every depth with its interval, the best depth and the first confirmed decline."""
    means = bootstrap.estimate({depth: Mean(sweep.utility[:, at]) for at, depth in enumerate(sweep.depths)})
    decline = first_decline(sweep, bootstrap)
    ends = (decline.reference, decline.depth) if decline else None
    peak = sweep.depths[int(np.argmax(sweep.utility.mean(axis=0)))]
    return {
        "depths": list(sweep.depths),
        "means": [_numbers(means[depth]) for depth in sweep.depths],
        "peak": peak,
        "decline": {"from": ends[0], "to": ends[1]} if ends else None,
        "words": of_decline(peak, ends, sweep.depths[-1]),
    }


def _fact(key: str, share: Estimate, count: int, of: int, said: str = "") -> dict[str, Any]:
    """A share with its interval and its counts; `said` is what only this update can say of it."""
    return {"key": key, **_numbers(share), "count": count, "of": of, "said": said}


def _numbers(estimate: Estimate) -> dict[str, float | None]:
    interval = estimate.interval
    return {
        "value": estimate.value,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
    }


def of_certificates(row: Row) -> str:
    """How many outcomes no rounding of the readout can overturn, and how many are recorded otherwise."""
    said = f"No rounding of the readout can overturn {row['certified']} of {row['updates']} outcomes."
    return said + (f" {row['contradicted']} of them are recorded otherwise." if row["contradicted"] else "")


def of_decline(peak: int, decline: tuple[int, int] | None, last: int) -> str:
    """Where more loops stop helping."""
    best = f"Mean utility is highest after {peak} {'loop' if peak == 1 else 'loops'}."
    if decline is None:
        more = " It is still the last depth measured." if peak == last else ""
        return f"{best}{more} No depth lies clearly below the best one before it."
    reference, depth = decline
    return f"{best} By depth {depth} it has clearly fallen below what depth {reference} had reached."


@dataclass(frozen=True)
class Candidate:
    """An evaluation set that the page could open with."""

    name: str
    data: EvaluationSet
    model: str
    """The model, with the run where another run measured it on the same questions."""
    leading: int
    """The place of the leading update."""
    declines: bool
    """Whether that update clearly lowers the mean utility."""

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Trained weights before random ones, a clear decline before none, then how clear the clearest path is."""
        trained = self.data.condition.weights is not Weights.RANDOM
        return trained, self.declines, self.clearest[1]

    @cached_property
    def clearest(self) -> tuple[int, float]:
        """The question whose path is clearest, and by how many nats; without a failure, the one that moves most."""
        updates = self.data.updates[self.leading]
        if not updates.finite_step.any():
            return int(np.argmax(np.abs(updates.gain))), 0.0
        clarity = np.where(updates.finite_step, updates.clarity, -1.0)
        return int(np.argmax(clarity)), float(clarity.max())


def opening(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The path and the words at the top of the page."""
    best = max(candidates, key=lambda candidate: candidate.rank)
    row, _ = best.clearest
    updates = best.data.updates[best.leading]
    found = finding(updates)
    stored = updates.has("grid_gain")
    if updates.outcome[row] != Outcome.FINITE_STEP_FAILURE:
        why = f"Of the {found.questions} updates, the one that moves most."
    elif found.failures == 1:
        why = "The only finite-step failure of this update."
    else:
        why = f"The clearest of {found.failures} finite-step failures: its rise and its fall are both large."
    return {
        "set": best.name,
        "transition": updates.condition.transition,
        "id": updates.ids[row],
        "snippet": snippet(str(best.data.examples["prompt"][row])),
        "outcome": int(updates.outcome[row]),
        "slope": float(updates.slope[row]),
        "gain": float(updates.gain[row]),
        "alphas": list(GRID) if stored else [0.0, 1.0],
        "path": updates.grid_gain[row].tolist() if stored else [0.0, float(updates.gain[row])],
        "stored": stored,
        "title": found.title(best.model),
        "finding": found.sentence(),
        "meaning": found.meaning(),
        "why": why,
    }
