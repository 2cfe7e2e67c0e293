"""Two runs of a page on the same questions: which rows belong together, and every difference with its interval."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscope.errors import LoopscopeError
from loopscope.report.pack import pack
from loopscope.report.sentences import clearly, percent
from loopscope.stats import Bootstrap, Estimate
from loopscope.store import StoredRun
from loopscope.studies.metrics import CHANGED, words_of
from loopscope.studies.run_diff import DiffRow, RunDiff, UpdateDiff, diff

MOST_PAIRS = 10
"""Pairs of runs on one page: all of five runs."""
LONGEST_VALUE = 80
SetNames = Mapping[tuple[int, str, str], str]
"""The page's name of each evaluation set, by run, task and split."""


def pairs(runs: Sequence[StoredRun], names: SetNames, bootstrap: Bootstrap) -> tuple[list[list[int]], str]:
    """Which runs can be compared, as pairs of their numbers, and the pack of everything about them."""
    found: list[list[int]] = []
    described: list[dict[str, Any]] = []
    arrays: dict[str, NDArray[Any]] = {}
    for first, second in combinations(range(len(runs)), 2):
        if len(found) == MOST_PAIRS:
            break
        try:
            result = diff(runs[first], runs[second], bootstrap=bootstrap)
        except LoopscopeError:  # nothing in common: not a pair
            continue
        sets: list[dict[str, Any]] = []
        for paired in result.sets:
            key = f"p{len(found)}-{len(sets)}"
            arrays |= {f"{key}-{side}": rows.astype(np.int32) for side, rows in enumerate(paired.rows)}
            sets.append(
                {
                    "rows": key,
                    "first": names[first, paired.first.task, paired.first.split],
                    "second": names[second, paired.second.task, paired.second.split],
                    "said": paired.said(),
                    "updates": [_update(each) for each in result.updates if each.pair in paired.updates],
                }
            )
        found.append([first, second])
        described.append({"first": first, "second": second, "sets": sets, "settings": _settings(result)})
    return found, pack(arrays, {"pairs": described})


def _settings(found: RunDiff) -> list[list[str]]:
    return [[each.field, _short(each.old), _short(each.new)] for each in found.settings]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def _update(update: UpdateDiff) -> dict[str, Any]:
    condition = update.pair.second.updates.condition
    return {
        "transition": condition.transition,
        "update": condition.update,
        "n": condition.n,
        "changed": len(update.changed),
        "words": _sentence(update),
        "metrics": [_metric(row) for row in update.rows if row.key != CHANGED and not _undefined(row)],
    }


def _sentence(update: UpdateDiff) -> str:
    """What the second run does otherwise, in a sentence or two."""
    rows = {row.key: row for row in update.rows}
    n, changed = len(update.pair.first.updates), len(update.changed)
    said = [f"{changed or 'None'} of {n} questions {'has' if changed == 1 else 'have'} another outcome."]
    gain, share = rows["gain"], rows["share"]
    direction = {1: "higher", -1: "lower", 0: "not clearly another"}[clearly(gain.difference)]
    mean = f"{gain.first_text} → {gain.second_text}"
    said.append(f"The mean gain of the full step is {direction} ({mean} nats).")
    if share.first.value is not None and share.second.value is not None:
        parts = f"{percent(share.first.value)} → {percent(share.second.value)}"
        clear = "" if clearly(share.difference) else ", not clearly another"
        said.append(f"Finite-step failures among harmful updates: {parts}{clear}.")
    return " ".join(said)


def _undefined(row: DiffRow) -> bool:
    return row.first.value is None and row.second.value is None


def _metric(row: DiffRow) -> dict[str, Any]:
    metric = words_of(row.key)
    return {
        "name": row.key,
        "words": metric.words,
        "share": metric.share,
        "text": list(row.cells),
        "clear": clearly(row.difference),
        **_numbers(row.difference),
    }


def _numbers(estimate: Estimate) -> dict[str, float | None]:
    interval = estimate.interval
    return {
        "value": estimate.value,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
    }
