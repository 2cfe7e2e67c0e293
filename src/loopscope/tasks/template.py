"""How a question is worded: a TOML file that turns a normalised question into a row of text.

A template of kind "solution" has a `prompt` and a `solution`; the solution is what the reference utility reads
(Appendix C.2, "Reference solutions"). One of kind "options" has a `context`, an `option` that is filled once per
answer option, and a `delimiter` between the two ("Joint options"). The package's templates lie in
`loopscope/tasks/templates`; a user's own file replaces any of them. `template_hash` goes into the manifest.
"""

from __future__ import annotations

import hashlib
import string
import tomllib
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from loopscope._errors import LoopscopeError
from loopscope._reading import read_text
from loopscope.tasks.cleaning import Step, clean, parse_steps
from loopscope.tasks.example import Row
from loopscope.tasks.item import Item, canonical
from loopscope.tasks.protocol import Kind
from loopscope.tasks.wording import Wording, check_size

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
