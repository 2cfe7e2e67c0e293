"""A run as a notebook shows it: what was measured, and what every update did."""

from __future__ import annotations

from loopscope.display import OUTCOME_COLOURS, SOFT, Markup, element, html_table, swatch
from loopscope.errors import LoopscopeError
from loopscope.path import Outcome
from loopscope.report.sentences import signed
from loopscope.store import StoredRun
from loopscope.studies.conditions import printable
from loopscope.studies.records import Records, Updates
from loopscope.studies.runs import finding, run_lines

BAR = 140
"""Pixels of a bar of shares."""
MOST_LINES = 60


def as_html(run: StoredRun) -> str:
    """A card; a damaged run says what is wrong instead."""
    manifest = run.manifest
    done = f"{len(run.unit_records)} of {len(run.units)} units stored"
    stored = ", ".join(table.name for table in manifest.tables())
    about = f"level {manifest.level}, states {manifest.dtypes.states}; {done} ({stored})"
    parts = [
        element("p", element("strong", printable(manifest.model.name)), f" · {printable(str(run.path))}"),
        element("p", about, style=SOFT),
    ]
    try:
        updates = Records([run]).updates
    except LoopscopeError as error:
        return element("div", *parts, element("p", str(error)))
    if not manifest.transitions:
        return element("div", *parts, element("pre", "\n".join(run_lines(run)[1:])))
    lines = [_line(each) for each in updates[:MOST_LINES]]
    heads = ["Task", "Update", "Questions", "Mean ΔU", "Outcomes", "Harmful", "Finite-step failures"]
    parts.append(html_table(heads, lines, words=[True, True, False, False, True, False, False]))
    if len(updates) > MOST_LINES:
        parts.append(element("p", f"… and {len(updates) - MOST_LINES} more updates", style=SOFT))
    key = (Markup(f"{swatch(outcome)} {element('span', outcome, style=SOFT)} &nbsp; ") for outcome in Outcome)
    return element("div", *parts, element("p", *key))


def _line(updates: Updates) -> list[object]:
    found = finding(updates)
    mean = signed(float(updates.gain.mean()))
    bar = _shares([int((updates.outcome == outcome).sum()) for outcome in Outcome])
    title = updates.condition.set_title
    return [title, found.update, found.questions, mean, bar, found.harmful, found.failures]


def _shares(counts: list[int]) -> Markup:
    """A bar of the outcomes."""
    pieces = [
        element(
            "span",
            style=f"display:inline-block;height:.8em;width:{BAR * count / sum(counts):.1f}px;"
            f"background:{OUTCOME_COLOURS[outcome]}",
            title=f"{outcome}: {count} of {sum(counts)}",
        )
        for outcome, count in zip(Outcome, counts, strict=True)
        if count
    ]
    return element("span", *pieces, style="white-space:nowrap;font-size:1em;line-height:1")
