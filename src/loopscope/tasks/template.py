r"""How a question is worded: a TOML file that turns a normalised question into a row of text.

A template of kind "solution" has a `prompt` and a `solution`; the solution is what the reference utility reads
(Appendix C.2, "Reference solutions"). One of kind "options" has a `context`, an `option` that is filled once per
answer option, and a `delimiter` between the two ("Joint options"). The package's templates lie in
`loopscope/tasks/templates`; a user's own file replaces any of them. `template_hash` goes into the manifest.

A template string is text with `{field}` places, as `str.format` writes them: `{name!t}` trims the field, `{name!c}`
capitalises it as `str.capitalize` does; `{{` and `}}` are braces. There is no attribute or index access and no format
specification, so a template cannot reach anything but texts.

>>> Wording("Question: {question!t}\nAnswer:").fill({"question": " Why? "}, "row 0")
'Question: Why?\nAnswer:'

Text is cleaned up by the steps that a template lists under `clean`, in order. HellaSwag needs it: its WikiHow half
carries bracketed marks like `[header]` that lm-evaluation-harness removes before the text is scored. Patterns are those
of RE2, through Arrow: no look-around and no back-reference in the pattern, and so no pattern that takes exponential
time, which Python's `re` can neither foresee nor interrupt.

>>> steps = parse_steps([{"pattern": r"\[.*?\]", "with": ""}, {"trim": True}], "template")
>>> clean(" [header] Wash it. ", steps)
'Wash it.'
"""

from __future__ import annotations

import hashlib
import string
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

from loopscope.errors import LoopscopeError, setting
from loopscope.regular_files import read_text
from loopscope.tasks.encoding import Kind, Row, canonical
from loopscope.tasks.items import Item
from loopscope.tasks.source_rows import SourceRow

MOST_CHARACTERS = 1_000_000
"""Characters of a question as worded, its context counted once an option. A character may be a token, and a token takes
some hundred bytes while it is encoded."""

_CONVERSIONS: dict[str | None, Callable[[str], str]] = {None: str, "t": str.strip, "c": str.capitalize}


class _Place(NamedTuple):
    literal: str
    name: str | None
    conversion: str | None


class Wording:
    """A parsed template string.

    Attributes:
        text: as written.
        names: the fields that it names.
    """

    def __init__(self, text: str, where: str = "template") -> None:
        self.text = text
        self._parts = tuple(_parse(text, where))
        self.names = frozenset(part.name for part in self._parts if part.name is not None)

    def fill(self, values: Mapping[str, str], where: str) -> str:
        """The text with every place filled; braces in the values are text."""
        pieces: list[str] = []
        size = 0
        for literal, name, conversion in self._parts:
            pieces.append(literal)
            if name is not None:
                if name not in values:
                    known = ", ".join(sorted(values)) or "none"
                    raise LoopscopeError(
                        f"{where}: field {name!r} is missing, which the template names; there is: {known}"
                    )
                pieces.append(_CONVERSIONS[conversion](values[name]))
                size += len(pieces[-1])
                check_size(size, where)
        return "".join(pieces)


def check_size(characters: int, where: str) -> None:
    """Refuse a text, or a question's texts together, that would take gigabytes to encode."""
    if characters > MOST_CHARACTERS:
        raise LoopscopeError(
            f"{where}: {characters} characters as worded, with the context once an option; a question has at most "
            f"{MOST_CHARACTERS}: shorten it or leave the row out"
        )


def _parse(text: str, where: str) -> list[_Place]:
    parts = []
    try:
        for literal, name, specification, conversion in string.Formatter().parse(text):
            if name is not None and (specification or not name.isidentifier()):
                raise LoopscopeError(f"{where}: {{{name}}} in {text!r} must be a plain field name like {{question}}")
            if conversion not in _CONVERSIONS:
                raise LoopscopeError(f"{where}: !{conversion} in {text!r} is not known; there are !t and !c")
            parts.append(_Place(literal, name, conversion))
    except ValueError as error:
        raise LoopscopeError(
            f"{where}: {text!r} is not a template ({error}); write {{{{ and }}}} for braces"
        ) from error
    return parts


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


_LETTERS = string.ascii_uppercase
MOST_TEMPLATE_BYTES = 2**16
"""Bytes of a template file."""


@dataclass(frozen=True)
class Template:
    """A parsed template; `content` is the TOML table it came from and all that `hash` covers."""

    name: str
    kind: Kind
    content: dict[str, Any]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content: comments and the order of keys do not count."""
        return hashlib.sha256(canonical(self.content)).hexdigest()

    @property
    def names(self) -> frozenset[str]:
        """The question's fields that the template needs."""
        if self.kind == "solution":
            return self._context.names | self._solution.names
        return self._context.names - {"choices"}

    def word(self, item: Item) -> Row:
        """The question in this template's words.

        Blanks and line ends at the end of an option's context go over to the option, as in lm-evaluation-harness.
        """
        continuations: tuple[str, ...]
        if self.kind == "solution":
            context = self._context.fill(item.fields, item.where)
            continuations = (self._solution.fill(item.fields, item.where),)
        else:
            options = [clean(option, self._clean, item.where) for option in self._options_of(item)]
            places = [{"option": option, "letter": _letter(k)} for k, option in enumerate(options)]
            choices = "\n".join(self._choice.fill(place, item.where) for place in places)
            context = self._context.fill({**item.fields, "choices": choices}, item.where)
            context = clean(context, self._clean, item.where)
            continuations = tuple(self._delimiter + self._option.fill(place, item.where) for place in places)
        if not context.strip():
            raise LoopscopeError(f"{item.where}: nothing stands before the answer; its first token needs a context")
        if not all(continuation.strip() for continuation in continuations):
            raise LoopscopeError(f"{item.where}: the answer is empty as worded; give it a text or leave the row out")
        # As it is encoded: the context once an option.
        check_size(sum(len(context) + len(continuation) for continuation in continuations), item.where)
        if self.kind == "options":
            bare = context.rstrip()
            context, continuations = bare, tuple(context[len(bare) :] + text for text in continuations)
        return Row(item.id, item.index, context, continuations, item.answer, item.metadata)

    def _options_of(self, item: Item) -> tuple[str, ...]:
        fixed = self.content.get("options")
        if fixed is None:
            return item.options
        if len(fixed) != len(item.options):
            raise LoopscopeError(
                f"{item.where}: template {self.name} names {len(fixed)} options for a row that has "
                f"{len(item.options)}; leave its 'options' out to use the row's own"
            )
        return tuple(fixed)

    @cached_property
    def _context(self) -> Wording:
        return self._wording("prompt" if self.kind == "solution" else "context")

    @cached_property
    def _solution(self) -> Wording:
        return self._wording("solution")

    @cached_property
    def _option(self) -> Wording:
        return self._wording("option", "{option}")

    @cached_property
    def _choice(self) -> Wording:
        return self._wording("choice", "{letter}. {option}")

    @cached_property
    def _clean(self) -> tuple[Step, ...]:
        return parse_steps(self.content.get("clean", []), f"template {self.name}")

    @property
    def _delimiter(self) -> str:
        return str(self.content.get("delimiter", " "))

    def _wording(self, key: str, default: str = "") -> Wording:
        return Wording(self.content.get(key, default), f"template {self.name}, {key}")


_KEYS: dict[str, dict[str, type]] = {
    "solution": {"prompt": str, "solution": str},
    "options": {"context": str, "option": str, "choice": str, "delimiter": str, "options": list, "clean": list},
}
_REQUIRED = {"solution": ("prompt", "solution"), "options": ("context",)}


def builtin_template(name: str) -> Template:
    """A template of the package, by its task's name."""
    text = (resources.files("loopscope.tasks.templates") / f"{name}.toml").read_text(encoding="utf-8")
    return parse_template(tomllib.loads(text), name)


def own_template(first: SourceRow) -> Template:
    """The plain template for a file, told by its first row's fields."""
    names = first.fields.keys()
    if {"prompt", "solution"} <= names:
        return builtin_template("own_solution")
    if {"context", "options", "answer"} <= names:
        return builtin_template("own_options")
    if {"prompt", "options", "answer"} <= names:
        return builtin_template("own_prompt_options")
    fields = ", ".join(sorted(names)) or "none"
    raise LoopscopeError(
        f"{first.where}: a task of your own needs the fields prompt and solution, or context, options and answer, or"
        f" the same as token ids: prompt_ids, solution_ids, options_ids (this row has: {fields}); a benchmark's file is"
        f" read by the benchmark's name and {setting('data_dir')}"
    )


def read_template(path: str | Path) -> Template:
    """A user's template file.

    Raises:
        LoopscopeError: the file cannot be read or is not a template; the message says what to mend.
    """
    text = read_text(path, "template", MOST_TEMPLATE_BYTES)
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of more digits than Python reads
        raise LoopscopeError(f"template {path} is not TOML: {error}") from error
    return parse_template(content, str(path))


def parse_template(content: dict[str, Any], name: str) -> Template:
    """A template from its table, every key checked."""
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise LoopscopeError(f'template {name}: \'kind\' must be "solution" or "options", not {str(kind)[:60]!r}')
    allowed = _KEYS[kind]
    for key, found in content.items():
        if key == "kind":
            continue
        if key not in allowed:
            raise LoopscopeError(f"template {name}: unknown key {key!r}; there are {', '.join(allowed)}")
        if not isinstance(found, allowed[key]):
            raise LoopscopeError(f"template {name}: {key!r} must be a {'list' if allowed[key] is list else 'text'}")
    for key in _REQUIRED[kind]:
        if key not in content:
            raise LoopscopeError(f"template {name}: {key!r} is missing")
    if not all(isinstance(option, str) and option.strip() for option in content.get("options", [])):
        raise LoopscopeError(f"template {name}: 'options' must be a list of non-empty texts")
    template = Template(name, kind, content)  # type: ignore[arg-type]
    _check_places(template)
    return template


def _check_places(template: Template) -> None:
    """Parse every part now: a mistake in a template shows before anything is read."""
    _ = template.names, template._clean
    if template.kind == "options":
        for key, wording in (("option", template._option), ("choice", template._choice)):
            if unknown := wording.names - {"option", "letter"}:
                raise LoopscopeError(
                    f"template {template.name}: {key!r} names {{{min(unknown)}}}; it may name {{option}} and {{letter}}"
                )


def _letter(number: int) -> str:
    return _LETTERS[number] if number < len(_LETTERS) else str(number + 1)
