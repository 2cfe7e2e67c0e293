"""A training as the page shows it: outcomes, gains and utility by depth at every step, with the run of each."""

from collections.abc import Mapping, Sequence
from typing import Any

from loopscope.path import Outcome
from loopscope.report.sentences import percent
from loopscope.stats import Bootstrap, Estimate
from loopscope.studies.records import Records
from loopscope.studies.training import DepthMoment, Moment, Training, trainings

SHARES = {
    Outcome.PROGRESSING: "progressing",
    Outcome.NEUTRAL: "neutral",
    Outcome.DIRECTIONAL_FAILURE: "directional",
    Outcome.FINITE_STEP_FAILURE: "finite_step",
}
NUMBERS = {
    "gain": "mean gain ΔU",
    "slope": "mean slope A",
    "accumulated_curvature": "accumulated curvature ΔU − A",
    "quarter_gain": "gain of a quarter step",
    "quadratic_gain": "gain of the quadratic step",
}
"""What the table of the view lists, in nats."""


def training_views(records: Records, labels: Mapping[str, str], bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """Every training of at least two steps; `labels` are what the page calls its runs, by their place."""
    found = [one for one in trainings(records, bootstrap) if one.updates and len(one.steps) > 1]
    return [_described(one, labels) for one in found]


def _described(one: Training, labels: Mapping[str, str]) -> dict[str, Any]:
    assert one.leading is not None
    return {
        "title": one.title,
        "set": one.condition.set_title,
        "task": f"{one.condition.task}/{one.condition.split}",
        "trained_depth": one.trained_depth,
        "leading": one.leading,
        "words": _sentence(one.updates[one.leading], one.depths),
        "updates": [
            {
                "transition": transition,
                "update": moments[0].condition.update,
                "moments": [_moment(moment, labels) for moment in moments],
            }
            for transition, moments in one.updates.items()
        ],
        "depths": [
            {
                "step": moment.step,
                "best": _numbers(moment.best),
                "means": [{"depth": depth, **_numbers(mean)} for depth, mean in sorted(moment.utility.items())],
            }
            for moment in one.depths
        ],
        "numbers": NUMBERS,
    }


def _moment(moment: Moment, labels: Mapping[str, str]) -> dict[str, Any]:
    n, found = moment.condition.n, moment.found
    shares = {outcome: found.get(name, Estimate(None, n)) for outcome, name in SHARES.items()}
    return {
        "step": moment.step,
        "run": labels.get(moment.condition.place),
        "n": n,
        "outcomes": [
            {"code": int(outcome), "count": round((share.value or 0.0) * n), **_numbers(share)}
            for outcome, share in sorted(shares.items())
        ],
        "numbers": {name: _numbers(found[name]) for name in NUMBERS if name in found},
    }


def _sentence(moments: Sequence[Moment], depths: Sequence[DepthMoment]) -> str:
    """What the training did to the update that tells most, from its first step to its last."""
    first, last = moments[0], moments[-1]
    steps = f"From step {first.step:,} to step {last.step:,}"
    shares = [moment.found["finite_step"].value or 0.0 for moment in (first, last)]
    said = [
        f"{steps}, finite-step failures of {last.condition.update} go from {percent(shares[0])} to "
        f"{percent(shares[1])} of the questions."
    ]
    best = [moment.best.value for moment in depths if moment.step in (first.step, last.step)]
    if len(best) == 2 and None not in best:
        one, other = (int(depth or 0) for depth in best)
        said.append(f"The best depth stays {one}." if one == other else f"The best depth goes from {one} to {other}.")
    return " ".join(said)


def _numbers(estimate: Estimate) -> dict[str, float | None]:
    interval = estimate.interval
    return {
        "value": estimate.value,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
    }
