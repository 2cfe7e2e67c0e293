r"""How a question is worded: a TOML file that turns a normalised question into a row of text.

A template of kind "solution" has a `prompt` and a `solution`; the solution is what the reference utility reads
(Appendix C.2, "Reference solutions"). One of kind "options" has a `context`, an `option` that is filled once per
answer option, and a `delimiter` between the two ("Joint options"). The package's templates lie in
`templates.toml`; a user's own file replaces any of them. `template_hash` goes into the manifest.

A template string is text with `{field}` places, as `str.format` writes them: `{name!t}` trims the field, `{name!c}`
capitalises it as `str.capitalize` does; `{{` and `}}` are braces. There is no attribute or index access and no format
specification, so a template cannot reach anything but texts.

>>> Wording("Question: {question!t}\nAnswer:").fill({"question": " Why? "}, "row 0")
'Question: Why?\nAnswer:'

Text is cleaned up by the steps that a template lists under `clean`, in order: HellaSwag's WikiHow half carries
bracketed marks like `[header]` that lm-evaluation-harness removes before the text is scored.

>>> clean(" [header] Wash it. ", [{"pattern": r"\[.*?\]", "with": ""}, {"trim": True}])
'Wash it.'
"""

from __future__ import annotations

import hashlib
import re
import string
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.limits import TimeLimitError, read_text, time_limit
from loopscope.tasks.encoding import Kind, Row, canonical
from loopscope.tasks.source_rows import Item, SourceRow

MOST_CHARACTERS = 1_000_000
"""Characters of a question as worded, its context counted once an option. A character may be a token, and a token takes
some hundred bytes while it is encoded."""
MOST_SECONDS = 5.0
"""Of one pattern on one text."""
MOST_TEMPLATE_BYTES = 2**16
"""Bytes of a template file."""
_CONVERSIONS: dict[str | None, Callable[[str], str]] = {None: str, "t": str.strip, "c": str.capitalize}
_KEYS: dict[str, dict[str, type]] = {
    "solution": {"prompt": str, "solution": str},
    "options": {"context": str, "option": str, "choice": str, "delimiter": str, "options": list, "clean": list},
}
_REQUIRED = {"solution": ("prompt", "solution"), "options": ("context",)}
_STEPS = '{ trim = true }, { replace = "x", with = "y" } and { pattern = "regular expression", with = "y" }'


class Wording:
    """A parsed template string; `names` are the fields that it names."""

    def __init__(self, text: str, where: str = "template") -> None:
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise LoopscopeError(
                f"{where}: {text!r} is not a template ({error}); write {{{{ and }}}} for braces"
            ) from error
        for _, name, specification, conversion in parts:
            if name is not None and (specification or not name.isidentifier()):
                raise LoopscopeError(f"{where}: {{{name}}} in {text!r} must be a plain field name like {{question}}")
            if conversion not in _CONVERSIONS:
                raise LoopscopeError(f"{where}: !{conversion} in {text!r} is not known; there are !t and !c")
        self._parts = [(literal, name, _CONVERSIONS[conversion]) for literal, name, _, conversion in parts]
        self.names = frozenset(name for _, name, _ in self._parts if name is not None)

    def fill(self, values: Mapping[str, str], where: str) -> str:
        """The text with every place filled; braces in the values are text."""
        if missing := sorted(self.names - set(values)):
            known = ", ".join(sorted(values)) or "none"
            raise LoopscopeError(
                f"{where}: field {missing[0]!r} is missing, which the template names; there is: {known}"
            )
        check_size(sum(len(values[name]) for _, name, _ in self._parts if name), where)
        return "".join(literal + (convert(values[name]) if name else "") for literal, name, convert in self._parts)


def check_size(characters: int, where: str) -> None:
    """Refuse a text, or a question's texts together, that would take gigabytes to encode."""
    if characters > MOST_CHARACTERS:
        raise LoopscopeError(
            f"{where}: {characters} characters as worded, with the context once an option; a question has at most "
            f"{MOST_CHARACTERS}: shorten it or leave the row out"
        )


def clean(text: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """`text` after all steps."""
    for step in steps:
        if "trim" in step:
            text = text.strip()
        elif "replace" in step:
            text = text.replace(step["replace"], step["with"])
        else:
            try:
                with time_limit(MOST_SECONDS):
                    text = re.sub(step["pattern"], step["with"], text)
            except TimeLimitError:
                raise LoopscopeError(
                    f"the pattern {step['pattern']!r} takes more than {MOST_SECONDS:g} seconds on {shown(text)}: write "
                    "it without repeats of repeats"
                ) from None
    return text


def _check_steps(listed: Sequence[Any], where: str) -> None:
    for step in listed:
        kinds = [key for key in ("replace", "pattern") if isinstance(step, dict) and step.keys() == {key, "with"}]
        if kinds and all(isinstance(part, str) for part in step.values()) and step[kinds[0]]:
            try:
                re.sub(step["pattern"], step["with"], "") if kinds == ["pattern"] else None
            except (re.error, IndexError, RecursionError) as error:
                raise LoopscopeError(f"{where}: {step['pattern']!r} is not a regular expression ({error})") from error
        elif step != {"trim": True}:
            raise LoopscopeError(f"{where}: clean step {str(step)[:200]} is not known; there are {_STEPS}")


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
        parts = ("prompt", "solution") if self.kind == "solution" else ("context",)
        return frozenset().union(*(self._wording[part].names for part in parts)) - {"choices"}

    def word(self, item: Item) -> Row:
        """The question in this template's words.

        Blanks and line ends at the end of an option's context go over to the option, as in lm-evaluation-harness.
        """
        continuations: tuple[str, ...]
        wording, steps = self._wording, self.content.get("clean", [])
        if self.kind == "solution":
            context = wording["prompt"].fill(item.fields, item.where)
            continuations = (wording["solution"].fill(item.fields, item.where),)
        else:
            options = [clean(option, steps) for option in self._options_of(item)]
            places = [{"option": option, "letter": _letter(k)} for k, option in enumerate(options)]
            choices = "\n".join(wording["choice"].fill(place, item.where) for place in places)
            context = clean(wording["context"].fill({**item.fields, "choices": choices}, item.where), steps)
            delimiter = str(self.content.get("delimiter", " "))
            continuations = tuple(delimiter + wording["option"].fill(place, item.where) for place in places)
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
        fixed = self.content.get("options", item.options)
        if len(fixed) != len(item.options):
            raise LoopscopeError(
                f"{item.where}: template {self.name} names {len(fixed)} options for a row that has "
                f"{len(item.options)}; leave its 'options' out to use the row's own"
            )
        return tuple(fixed)

    @cached_property
    def _wording(self) -> dict[str, Wording]:
        given = {"option": "{option}", "choice": "{letter}. {option}", **self.content}
        parts = ("prompt", "solution") if self.kind == "solution" else ("context", "option", "choice")
        return {part: Wording(given[part], f"template {self.name}, {part}") for part in parts}


def builtin_template(name: str) -> Template:
    """A template of the package, by its task's name."""
    text = (resources.files("loopscope.tasks") / "templates.toml").read_text(encoding="utf-8")
    return parse_template(tomllib.loads(text)[name], name)


def own_template(first: SourceRow) -> Template:
    """The plain template for a file, by its first row's fields."""
    names = first.fields.keys()
    for needed, name in (
        ({"prompt", "solution"}, "own_solution"),
        ({"context", "options", "answer"}, "own_options"),
        ({"prompt", "options", "answer"}, "own_prompt_options"),
    ):
        if needed <= names:
            return builtin_template(name)
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
    """A template from its table; every part is parsed now, so that a mistake shows before anything is read."""
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise LoopscopeError(f'template {name}: \'kind\' must be "solution" or "options", not {str(kind)[:60]!r}')
    allowed = _KEYS[kind]
    for key, found in content.items():
        if key != "kind" and key not in allowed:
            raise LoopscopeError(f"template {name}: unknown key {key!r}; there are {', '.join(allowed)}")
        if key != "kind" and not isinstance(found, allowed[key]):
            raise LoopscopeError(f"template {name}: {key!r} must be a {'list' if allowed[key] is list else 'text'}")
    for key in _REQUIRED[kind]:
        if key not in content:
            raise LoopscopeError(f"template {name}: {key!r} is missing")
    if not all(isinstance(option, str) and option.strip() for option in content.get("options", [])):
        raise LoopscopeError(f"template {name}: 'options' must be a list of non-empty texts")
    _check_steps(content.get("clean", []), f"template {name}")
    template = Template(name, kind, content)  # type: ignore[arg-type]
    for key, wording in template._wording.items():
        if key in ("option", "choice") and (unknown := wording.names - {"option", "letter"}):
            raise LoopscopeError(
                f"template {name}: {key!r} names {{{min(unknown)}}}; it may name {{option}} and {{letter}}"
            )
    return template


def _letter(number: int) -> str:
    return string.ascii_uppercase[number] if number < len(string.ascii_uppercase) else str(number + 1)
