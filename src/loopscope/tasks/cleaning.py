r"""Text clean-up as data: the steps a template lists under `clean`, applied in order.

HellaSwag needs it: its WikiHow half carries bracketed marks like `[header]` that lm-evaluation-harness removes
before the text is scored.

>>> steps = parse_steps([{"pattern": r"\[.*?\]", "with": ""}, {"trim": True}], "template")
>>> clean(" [header] Wash it. ", steps)
'Wash it.'
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from loopscope._errors import LoopscopeError


class Step(NamedTuple):
    """One clean-up step: `trim`, `replace` a literal text, or replace every match of a `pattern`."""

    action: Literal["trim", "replace", "pattern"]
    what: str = ""
    by: str = ""


def clean(text: str, steps: tuple[Step, ...]) -> str:
    """`text` after all steps."""
    for step in steps:
        if step.action == "trim":
            text = text.strip()
        elif step.action == "replace":
            text = text.replace(step.what, step.by)
        else:
            text = re.sub(step.what, step.by, text)
    return text


def parse_steps(listed: Any, where: str) -> tuple[Step, ...]:
    """The steps of a template's `clean` list."""
    if not isinstance(listed, list):
        raise LoopscopeError(f"{where}: 'clean' must be a list of steps like {{ trim = true }}")
    return tuple(_step(entry, where) for entry in listed)


def _step(entry: Any, where: str) -> Step:
    if entry == {"trim": True}:
        return Step("trim")
    for action in ("replace", "pattern"):
        if isinstance(entry, dict) and entry.keys() == {action, "with"}:
            what, by = entry[action], entry["with"]
            if isinstance(what, str) and what and isinstance(by, str):
                _check_pattern(what, where, action)
                return Step("replace" if action == "replace" else "pattern", what, by)
    raise LoopscopeError(
        f"{where}: clean step {entry!r} is not known; there are {{ trim = true }}, "
        '{ replace = "x", with = "y" } and { pattern = "regular expression", with = "y" }'
    )


def _check_pattern(pattern: str, where: str, action: str) -> None:
    if action == "pattern":
        try:
            re.compile(pattern)
        except re.error as error:
            raise LoopscopeError(f"{where}: {pattern!r} is not a regular expression ({error})") from error
