"""A run as a notebook shows it: what was measured, and what every update did."""

from __future__ import annotations

import polars as pl

from loopscope.display import OUTCOME_COLOURS, SOFT, Markup, element, html_table, swatch
from loopscope.errors import LoopscopeError
from loopscope.path import Outcome
from loopscope.report.sentences import signed
from loopscope.store import StoredRun
from loopscope.studies.conditions import printable
from loopscope.studies.records import Records, Updates

BAR = 140
"""Pixels of a bar of shares."""
MOST_LINES = 60


def as_html(run: StoredRun) -> str:
    """A card; a damaged run says what is wrong instead."""
    manifest = run.manifest
    done = f"{len(run.unit_records)} of {len(run.units)} units stored"
    stored = ", ".join(table.name for table in manifest.tables())
    about = (
        f"level {manifest.level}, states {manifest.dtypes.states}, readout {manifest.dtypes.readout}; {done} ({stored})"
    )
    parts = [
        element("p", element("strong", printable(manifest.model.name)), f" · {printable(str(run.path))}"),
        element("p", about, style=SOFT),
    ]
    try:
        updates, depths = Records([run]).updates, run.depths
    except LoopscopeError as error:
        return element("div", *parts, element("p", str(error)))
    if not manifest.transitions:
        means = depths.group_by("task", "split", "depth", maintain_order=True).agg(n=pl.len(), mean=pl.mean("utility"))
        found = [[printable(f"{task} {split}"), depth, n, signed(mean)] for task, split, depth, n, mean in means.rows()]
        table = html_table(["Task", "Depth", "Questions", "Mean U"], found[:MOST_LINES], words=[True] + 3 * [False])
        return element("div", *parts, table)
    lines = [_line(each) for each in updates[:MOST_LINES]]
    heads = ["Task", "Update", "Questions", "Mean ΔU", "Outcomes", "Harmful", "Finite-step failures"]
    parts.append(html_table(heads, lines, words=[True, True, False, False, True, False, False]))
    if len(updates) > MOST_LINES:
        parts.append(element("p", f"… and {len(updates) - MOST_LINES} more updates", style=SOFT))
    key = (Markup(f"{swatch(outcome)} {element('span', outcome, style=SOFT)} &nbsp; ") for outcome in Outcome)
    return element("div", *parts, element("p", *key))


def _line(updates: Updates) -> list[object]:
    condition = updates.condition
    counts = {outcome: int((updates.outcome == outcome).sum()) for outcome in Outcome}
    return [
        condition.set_title,
        condition.update,
        len(updates),
        signed(float(updates.gain.mean())),
        shares(counts),
        int(updates.harmful.sum()),
        counts[Outcome.FINITE_STEP_FAILURE],
    ]


def shares(counts: dict[Outcome, int]) -> Markup:
    """A bar of the outcomes."""
    total = sum(counts.values()) or 1
    pieces = [
        element(
            "span",
            style=f"display:inline-block;height:.8em;width:{BAR * count / total:.1f}px;"
            f"background:{OUTCOME_COLOURS[outcome]}",
            title=f"{outcome}: {count} of {total}",
        )
        for outcome, count in counts.items()
        if count
    ]
    return element("span", *pieces, style="white-space:nowrap;font-size:1em;line-height:1")
