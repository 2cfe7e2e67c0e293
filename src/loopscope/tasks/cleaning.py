r"""Text clean-up as data: the steps a template lists under `clean`, applied in order.

HellaSwag needs it: its WikiHow half carries bracketed marks like `[header]` that lm-evaluation-harness removes
before the text is scored.

Patterns are those of RE2, through Arrow: no look-around and no back-reference in the pattern, and so no pattern that
takes exponential time, which Python's `re` can neither foresee nor interrupt.

>>> steps = parse_steps([{"pattern": r"\[.*?\]", "with": ""}, {"trim": True}], "template")
>>> clean(" [header] Wash it. ", steps)
'Wash it.'
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from loopscope._errors import LoopscopeError
from loopscope.tasks.wording import check_size

MOST_MATCHED = 20_000
"""Characters of a text that a pattern is applied to: replacing every match can take quadratic time."""
MOST_PATTERN = 1_000
"""Characters of a pattern, and of what replaces its matches."""


class Step(NamedTuple):
    """One clean-up step: `trim`, `replace` a literal text, or replace every match of a `pattern`."""

    action: Literal["trim", "replace", "pattern"]
    what: str = ""
    by: str = ""


def clean(text: str, steps: tuple[Step, ...], where: str = "text") -> str:
    """`text` after all steps; `where` is the place to show in an error."""
    for step in steps:
        if step.action == "trim":
            text = text.strip()
        elif step.action == "replace":
            check_size(len(text) + text.count(step.what) * (len(step.by) - len(step.what)), where)
            text = text.replace(step.what, step.by)
        else:
            if len(text) > MOST_MATCHED:
                raise LoopscopeError(
                    f"{where}: a text of {len(text)} characters for the clean-up pattern {step.what!r}, which takes at "
                    f"most {MOST_MATCHED}; clean the file itself, or leave the row out"
                )
            text = _replacer(step.what, step.by)(text)
    return text


@lru_cache
def _replacer(pattern: str, by: str) -> Callable[[str], str]:
    """What replaces every match; Arrow's ValueError, at the first text, for a pattern or replacement that is none."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    function, options = pc.get_function("replace_substring_regex"), pc.ReplaceSubstringOptions(pattern, by)

    def replace(text: str) -> str:
        replaced: str = function.call([pa.scalar(text, pa.string())], options).as_py()
        return replaced

    return replace


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
                if action == "replace":
                    return Step("replace", what, by)
                _check_pattern(what, by, where)
                return Step("pattern", what, by)
    raise LoopscopeError(
        f"{where}: clean step {str(entry)[:200]} is not known; there are {{ trim = true }}, "
        '{ replace = "x", with = "y" } and { pattern = "regular expression", with = "y" }'
    )


def _check_pattern(pattern: str, by: str, where: str) -> None:
    if max(len(pattern), len(by)) > MOST_PATTERN:
        raise LoopscopeError(f"{where}: the pattern {pattern[:40]!r}… or its 'with' exceeds {MOST_PATTERN} characters")
    try:
        _replacer(pattern, by)("")
    except ValueError as error:
        raise LoopscopeError(f"{where}: {pattern!r} with {by!r} is no RE2 pattern and replacement ({error})") from error
