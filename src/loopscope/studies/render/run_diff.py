"""Two runs compared, as text for a terminal and as plain values for JSON."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

from loopscope._version import __version__
from loopscope.stats import Estimate
from loopscope.store import StoredRun
from loopscope.studies.conditions import printable, shortened
from loopscope.studies.metrics import CHANGED, words_of
from loopscope.studies.run_diff import RunDiff, UpdateDiff

NAMED = 8
"""Settings that are spelled out; JSON has all of them."""
WIDTH = 80
"""Columns of a terminal."""
LISTED = 4
"""Questions that are named per kind of change; JSON has all of them."""
LONGEST_VALUE = 34
LONGEST_ID = 18


def as_text(found: RunDiff) -> str:
    """What was compared, one block per update, the conditions of `fail_if`."""
    runs = [
        f"{which:<7} {printable(str(run.path))}: {shortened(printable(run.manifest.model.name))}"
        for which, run in (("first", found.first), ("second", found.second))
    ]
    notes = [textwrap.fill(note, WIDTH, subsequent_indent="  ") for note in found.notes()]
    blocks = ["\n".join([*runs, *notes, *_settings(found)])]
    blocks += [_block(update, found.level) for update in found.updates]
    blocks.append(
        "* the interval of the difference lies on one side of zero\n"
        "In nats; shares in per cent, their differences in percentage points."
    )
    if found.checks:
        blocks.append("\n".join([*(f"fail-if {check}" for check in found.checks), _verdict(found)]))
    return "\n\n".join(blocks)


def _verdict(found: RunDiff) -> str:
    met = sum(bool(check.met) for check in found.checks)
    open_ones = sum(check.met is None for check in found.checks)
    more = f" ({open_ones} of {len(found.checks)} not decided)" if open_ones else ""
    return f"failed: {met} of {len(found.checks)} conditions met" if met else f"passed: no condition is met{more}"


def _settings(found: RunDiff) -> Iterator[str]:
    if not found.settings:
        yield "all settings are the same"
        return
    yield f"{len(found.settings)} settings differ:" if len(found.settings) > 1 else "one setting differs:"
    for setting in found.settings[:NAMED]:
        yield f"  {setting.field}: {_short(setting.old)} → {_short(setting.new)}"
    if len(found.settings) > NAMED:
        yield f"  and {len(found.settings) - NAMED} more (JSON has all)"


def _short(value: Any) -> str:
    """A setting's value in a few characters."""
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return f"{value[:8]}…"
    return shortened(printable(value if isinstance(value, str) else repr(value)), LONGEST_VALUE)


def _block(update: UpdateDiff, level: float) -> str:
    lines = [("", "first", "second", "difference", f"{100 * level:g}% interval")]
    lines += [(row.key, *row.cells) for row in update.rows if row.key != CHANGED]
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    stars = ["", *("  *" if _clear(row.difference) else "" for row in update.rows if row.key != CHANGED)]
    body = [
        "  "
        + "  ".join(cell.ljust(width) if not at else cell.rjust(width) for at, (cell, width) in enumerate(cells))
        + star
        for star, cells in zip(stars, (list(zip(line, widths, strict=True)) for line in lines), strict=True)
    ]
    n = len(update.pair.first.updates)
    return "\n".join([f"{update.pair.title}, {n} questions", *body, *_moves(update)])


def _clear(estimate: Estimate) -> bool:
    return estimate.interval is not None and not estimate.interval.covers(0.0)


def _moves(update: UpdateDiff) -> Iterator[str]:
    if not update.changed:
        yield "  no outcome changed"
        return
    (row,) = (row for row in update.rows if row.key == CHANGED)
    near = sum(question.layout_sensitive for question in update.changed)
    one = len(update.changed) == 1
    said = f"; {near} so near to zero that another batch layout could have done it" if near else ""
    line = f"{len(update.changed)} {'outcome' if one else 'outcomes'} changed, {row.cells[2]} ({row.cells[3]}){said}"
    yield textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ")
    for (first, second), count in update.moves.most_common():
        ids = [
            shortened(printable(question.example_id), LONGEST_ID)
            for question in update.changed
            if (question.first, question.second) == (first, second)
        ]
        more = ", …" if count > LISTED else ""
        line = f"{count} {first.label} → {second.label}: {', '.join(ids[:LISTED])}{more}"
        yield textwrap.fill(line, WIDTH, initial_indent="    ", subsequent_indent="      ")


def as_dict(found: RunDiff) -> dict[str, Any]:
    """Everything, in natural units and full precision."""
    return {
        "loopscope_version": __version__,
        "first": _run(found.first),
        "second": _run(found.second),
        "interval_level": found.level,
        "settings": [
            {"setting": each.field, "first": _plain(each.old), "second": _plain(each.new)} for each in found.settings
        ],
        "sets": [
            {
                "task": paired.second.task,
                "split": paired.second.split,
                "paired": len(paired),
                "only_first": paired.alone[0],
                "only_second": paired.alone[1],
                "other_words": paired.other_words,
            }
            for paired in found.sets
        ],
        "updates": [_update(update) for update in found.updates],
        "fail_if": [
            {"condition": str(check.limit), "where": check.where, "value": check.value, "met": check.met}
            for check in found.checks
        ],
        "failed": found.failed,
        "notes": list(found.notes()),
    }


def _run(run: StoredRun) -> dict[str, Any]:
    model = run.manifest.model
    return {
        "path": printable(str(run.path)),
        "model": printable(model.name),
        "revision": model.revision,
        "manifest_sha256": run.manifest.digest,
        "finished": run.finished,
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | list | dict | None) else None


def _update(update: UpdateDiff) -> dict[str, Any]:
    condition = update.pair.second.updates.condition
    return {
        "task": condition.task,
        "split": condition.split,
        "transition": condition.transition,
        "questions": condition.n,
        "metrics": {
            row.key: {
                "words": words_of(row.key).words,
                **({} if row.key == CHANGED else {"first": _estimate(row.first), "second": _estimate(row.second)}),
                "difference": _estimate(row.difference),
            }
            for row in update.rows
        },
        "changed": [
            {
                "id": question.example_id,
                "first": question.first.label,
                "second": question.second.label,
                "layout_sensitive": question.layout_sensitive,
            }
            for question in update.changed
        ],
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    interval = estimate.interval
    return {
        "value": estimate.value,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
    }
