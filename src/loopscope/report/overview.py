"""The numbers of the first view: utility over depth, outcome shares, what steps of other lengths give.

Nothing is estimated here in a way of its own: tables come from `loopscope.studies`, means and their intervals from
`loopscope.stats` with the resamples of the paper (Section 4.1), step oracles from `loopscope.path`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopscope.path import Outcome, oracles, uniform_grid
from loopscope.report import sentences
from loopscope.report.evaluation_set import EvaluationSet
from loopscope.report.opening import finding, leading_update
from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies.declare import Row, TableResult
from loopscope.studies.records import DepthSweep, Records, Updates
from loopscope.studies.tables.depths import running_best

Tables = Mapping[str, TableResult]

NEEDED_TABLES = ("mechanism", "contraction", "bound-selected")

STEPS = {
    "full": "Full step",
    "quarter": "Quarter step",
    "quadratic": "Quadratic step",
    "safe": "Safe step",
    "halt": "Better end",
    "oracle": "Best of five",
    "best": "Best scale",
}
BLIND = ("full", "quarter")
"""Steps that a model can take while it answers. A, Q and L_D are of the reference's own log probability."""
EXPLAINED = {
    "full": "The update as the model takes it.",
    "quarter": "A quarter of the update, for every question.",
    "quadratic": "The length α̂ that slope A and curvature Q of the reference's utility predict.",
    "safe": "The length for which a curvature bound guarantees a gain: 0.9\u00a0·\u00a02A/L_D, at most the full step.",
    "halt": "An oracle that may stay or take the full step.",
    "oracle": "An oracle that may also take ¼, ½ or ¾ of it.",
    "best": "An oracle that may take any scale of the FP64 path.",
}
"""What each step is; the page says it once."""
FACTS = {
    "finite": ("Right direction, step too long", "Finite-step failures among the updates that lower the utility."),
    "sign_slope": (
        "Sign predicted by A",
        "How often slope A has the sign of the gain. It is taken with the reference, so it explains and does not "
        "decide; a coin has 50%.",
    ),
    "sign_quadratic": ("Sign predicted by A\u00a0+\u00a0Q", "The same for slope and curvature together."),
    "quarter": ("Recovered by a quarter step", "Finite-step failures that a quarter of the step turns into a gain."),
    "certified": ("Certified outcomes", "Outcomes that no rounding of the readout can overturn."),
}
"""Name and meaning of the shares of an update; the page says the meaning once."""


@dataclass(frozen=True)
class Overview:
    """Finds the estimates of a condition among finished tables, and makes the ones that no table prints."""

    records: Records
    tables: Tables
    bootstrap: Bootstrap

    def of(self, data: EvaluationSet) -> dict[str, Any]:
        """One evaluation set; `leading` is the place of the update that tells most, `finding` what it tells."""
        gains = [step_gains(updates, self.bootstrap) for updates in data.updates]
        leading = leading_update(data.updates, [each["full"] for each in gains])
        return {
            "depth": self._depth(data),
            "updates": [self._update(updates, each) for updates, each in zip(data.updates, gains, strict=True)],
            "leading": leading,
            "declines": sentences.clearly(gains[leading]["full"]) < 0,
            "finding": finding(data.updates[leading]).sentence(),
        }

    def _depth(self, data: EvaluationSet) -> dict[str, Any] | None:
        sweep = next((sweep for sweep in self.records.sweeps if sweep.condition.same_set(data.condition)), None)
        return None if sweep is None else depth_summary(sweep, self.bootstrap)

    def _update(self, updates: Updates, gains: Mapping[str, Estimate]) -> dict[str, Any]:
        condition = updates.condition
        mechanism = self._row("mechanism", updates)
        contraction = self._row("contraction", updates)
        facts = []
        if mechanism is not None:
            facts.append(_fact("finite", mechanism["share"], mechanism["finite_step"], mechanism["harmful"]))
            for key in ("sign_slope", "sign_quadratic"):
                accuracy: Estimate = mechanism[key]
                facts.append(_fact(key, accuracy, round((accuracy.value or 0.0) * accuracy.n), accuracy.n))
        if contraction is not None:
            facts.append(_fact("quarter", *(contraction[name] for name in ("recovery", "recovered", "failures"))))
        certified = self._row("certificates", updates)
        if certified is not None and certified["share"] is not None:
            share, said = Estimate(certified["share"], certified["updates"]), sentences.of_certificates(certified)
            facts.append(_fact("certified", share, certified["certified"], certified["updates"], said))
        return {
            "transition": condition.transition,
            "update": condition.update,
            "n": condition.n,
            "outcomes": outcome_shares(updates, self.bootstrap),
            "steps": _steps(gains),
            "bounded": self._bounded(updates),
            "facts": facts,
        }

    def _bounded(self, updates: Updates) -> dict[str, Any] | None:
        """The safe step beside others, all over the questions that have one; None where the run has no bounds."""
        row = self._row("bound-selected", updates, "primary")
        if row is None or not row["n"]:
            return None
        gains = bounded_gains(updates, self.bootstrap)
        return {"n": gains["safe"].n, "steps": _steps(gains)}

    def _row(self, table: str, updates: Updates, key: str = "") -> Row | None:
        result = self.tables.get(table)
        rows = result.rows if result else ()
        return next((row for row in rows if row.condition == updates.condition and row.key == key), None)


def step_gains(updates: Updates, bootstrap: Bootstrap) -> dict[str, Estimate]:
    """Mean φ over all questions at the scales of simple rules and of the oracles, from shared resamples."""
    statistics = {"full": Mean(updates.gain)}
    if updates.has("grid_gain"):
        chosen = oracles(uniform_grid(5), updates.action_gain)
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
        {"key": key, "label": STEPS[key], "blind": key in BLIND, **_numbers(gains[key])}
        for key in STEPS
        if key in gains
    ]


def outcome_shares(updates: Updates, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """How many updates there are of every class, and their share with its interval."""
    shares = bootstrap.estimate({outcome: Mean(updates.outcome == outcome) for outcome in Outcome})
    return [
        {
            "code": int(outcome),
            "label": outcome.label,
            "count": int((updates.outcome == outcome).sum()),
            **_numbers(shares[outcome]),
        }
        for outcome in Outcome
    ]


def depth_summary(sweep: DepthSweep, bootstrap: Bootstrap) -> dict[str, Any]:
    """Mean utility at every depth with its interval, the best depth and the first confirmed decline."""
    means = bootstrap.estimate({depth: Mean(sweep.utility[:, at]) for at, depth in enumerate(sweep.depths)})
    decline = next((pair for pair in running_best(sweep, bootstrap) if pair.declines), None)
    peak = sweep.depths[int(np.argmax(sweep.utility.mean(axis=0)))]
    summary: dict[str, Any] = {
        "depths": list(sweep.depths),
        "means": [_numbers(means[depth]) for depth in sweep.depths],
        "peak": peak,
        "decline": None,
        "words": sentences.of_decline(peak, (decline.reference, decline.depth) if decline else None, sweep.depths[-1]),
    }
    if decline is not None:
        summary["decline"] = {"from": decline.reference, "to": decline.depth}
    if sweep.correct is not None:
        accuracy = bootstrap.estimate({depth: Mean(sweep.correct[:, at]) for at, depth in enumerate(sweep.depths)})
        summary["accuracy"] = [_numbers(accuracy[depth]) for depth in sweep.depths]
    return summary


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
