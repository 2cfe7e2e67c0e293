"""Utility over recurrent depth: where it peaks and declines, which update to look at, how evenly options are chosen."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies.declare import MODEL, TASK, Column, Panel, Values, table, words
from loopscope.studies.populations import OPTION_TASKS, SWEEPS, groups_of, no_depths
from loopscope.studies.records import DepthSweep


class Change(NamedTuple):
    """The mean utility of a depth minus that of an earlier one, paired by question."""

    reference: int
    depth: int
    change: Estimate

    @property
    def sign(self) -> str:
        """Whether the interval lies above zero, below zero or holds it."""
        interval = self.change.interval
        if interval is None or interval.covers(0.0):
            return "unresolved"
        return "rises" if interval.low > 0 else "falls"

    @property
    def declines(self) -> bool:
        """Whether the interval lies below zero."""
        return self.sign == "falls"

    @property
    def name(self) -> str:
        """As `19→20`."""
        return f"{self.reference}→{self.depth}"


def changes(sweep: DepthSweep, pairs: list[tuple[int, int]], bootstrap: Bootstrap) -> list[Change]:
    """The change between pairs of places among the stored depths; all share their resamples."""
    utility, depths = sweep.utility, sweep.depths
    found = bootstrap.estimate({pair: Mean(utility[:, pair[1]] - utility[:, pair[0]]) for pair in pairs})
    return [Change(depths[first], depths[second], found[first, second]) for first, second in pairs]


def running_best(sweep: DepthSweep, bootstrap: Bootstrap) -> list[Change]:
    """Every depth after the first against the earlier depth with the largest mean utility (ties: the smallest)."""
    means = sweep.utility.mean(axis=0)
    pairs = [(int(np.argmax(means[:index])), index) for index in range(1, len(sweep.depths))]
    return changes(sweep, pairs, bootstrap)


def neighbours(sweep: DepthSweep) -> list[tuple[int, int]]:
    """The places of stored depths t, t+1."""
    return [(index, index + 1) for index, (t, after) in enumerate(pairwise(sweep.depths)) if after == t + 1]


NEIGHBOURS = groups_of(lambda records: [sweep for sweep in records.sweeps if neighbours(sweep)], no_depths, "quick")


@table(
    "depth-coverage",
    "Depth-sweep coverage and observed utility declines",
    paper="tab:evaluation-coverage",
    summary="best depth and first running-best decline",
    over=SWEEPS,
    columns=(
        Panel(
            (TASK, words("N", "{n}"), Column("Peak", "{peak}"), Column("Decline", "{decline}")),
            across="condition.model_title",
        ),
    ),
)
def depth_coverage(sweep: DepthSweep, bootstrap: Bootstrap) -> Values:
    """Peak is the evaluated depth with highest mean reference utility. Decline is the earliest running-best decrease
    with a pointwise 95% paired interval below zero; a dash indicates none on the evaluated depths. Non-adjacent depth
    pairs represent cumulative changes.
    """
    first = next((pair for pair in running_best(sweep, bootstrap) if pair.declines), None)
    return {
        "n": sweep.condition.n,
        "depths": ",".join(map(str, sweep.depths)),
        "peak": sweep.depths[int(np.argmax(sweep.utility.mean(axis=0)))],
        "decline": first.name if first else None,
        "decline_change": first.change if first else Estimate(None, sweep.condition.n),
    }


@table(
    "transition-selection",
    "Selection of a transition",
    paper="app:exp-protocol",
    summary="earliest consecutive decline with its interval",
    over=NEIGHBOURS,
    columns=(
        *(MODEL, TASK, Column("N", "{condition.n}"), Column("Pairs", "{examined}"), Column("Declines", "{declines}")),
        Column("Earliest", "{selected}"),
        Column("Change (1e-3)\n[95% CI]", "{change:.3f}", per=1e-3, ci=True),
        Column("Lowest", "{largest}"),
        Column("Change (1e-3)", "{largest_change:.3f}", per=1e-3),
    ),
)
def transition_selection(sweep: DepthSweep, bootstrap: Bootstrap) -> Values:
    """Earliest consecutive decrease of mean reference utility with a pointwise 95% paired interval below zero, among
    the neighbouring depths that are stored. Intervals do not adjust for the choice.
    """
    pairs = changes(sweep, neighbours(sweep), bootstrap)
    declines = [pair for pair in pairs if pair.declines]
    lowest = min(pairs, key=lambda pair: pair.change.value or 0.0)
    return {
        "examined": len(pairs),
        "declines": len(declines),
        "selected": declines[0].name if declines else None,
        "change": declines[0].change if declines else Estimate(None, sweep.condition.n),
        "largest": lowest.name,
        "largest_change": lowest.change,
    }


@table(
    "consecutive-changes",
    "Mean utility change of every consecutive pair of depths",
    paper="app:exp-protocol",
    summary="every consecutive change, and whether its sign is resolved",
    over=NEIGHBOURS,
    columns=(
        *(MODEL, TASK, words("Pair", "{key}"), Column("N", "{condition.n}")),
        Column("Change (1e-3)\n[95% CI]", "{change:+.3f}", per=1e-3, ci=True),
        Column("Sign", "{sign}"),
    ),
)
def consecutive(sweep: DepthSweep, bootstrap: Bootstrap) -> Values:
    """Mean utility after a loop minus that before it, for neighbouring depths that are stored, with pointwise 95%
    paired intervals; the sign is unresolved where the interval holds zero.
    """
    pairs = changes(sweep, neighbours(sweep), bootstrap)
    return {pair.name: {"change": pair.change, "sign": pair.sign} for pair in pairs}


@table(
    "option-responses",
    "Response imbalance by depth",
    paper="app:exp-coverage",
    summary="response imbalance of option tasks by depth",
    over=groups_of(
        lambda records: [sweep for sweep in records.sweeps if sweep.correct is not None],
        lambda records: OPTION_TASKS.none_here(records) if records.sweeps else no_depths(records),
        "quick",
    ),
    columns=(
        *(MODEL, TASK, Column("Depth", "{depth}"), Column("Most chosen\noption", "{option}")),
        Column("Chosen", "{chosen}/{condition.n}"),
        Column("Share (%) [95% CI]", "{share:.2%}", ci=True),
        Column("Right (%)", "{right:.2%}"),
        Column("Accuracy (%)", "{accuracy:.2%}"),
    ),
)
def option_responses(sweep: DepthSweep) -> Values:
    """The option that is chosen most often at each depth, counted from 0, and the share of questions whose right option
    it is. Where both differ widely, a change of utility says little about reasoning.
    """
    correct, all_chosen, right = sweep.correct, sweep.chosen, sweep.right
    assert correct is not None
    assert all_chosen is not None
    assert right is not None
    rows = {}
    for index, (depth, chosen) in enumerate(zip(sweep.depths, all_chosen.T, strict=True)):
        option = int(np.bincount(chosen).argmax())  # the smallest of equals
        rows[str(depth)] = {
            "depth": depth,
            "option": option,
            "chosen": (chosen == option).sum(),
            "share": Mean(chosen == option),
            "right": (right == option).mean(),
            "accuracy": Mean(correct[:, index]),
        }
    return rows
