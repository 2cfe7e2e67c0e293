r"""A template string: text with `{field}` places, as `str.format` writes them, and nothing more.

`{name!t}` trims the field, `{name!c}` capitalises it as `str.capitalize` does; `{{` and `}}` are braces. There is
no attribute or index access and no format specification, so a template cannot reach anything but texts.

>>> Wording("Question: {question!t}\nAnswer:").fill({"question": " Why? "}, "row 0")
'Question: Why?\nAnswer:'
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import NamedTuple

from loopscope._errors import LoopscopeError

MOST_CHARACTERS = 1_000_000
"""Characters of a question as worded, its context counted once an option. A character may be a token, and a token takes
some hundred bytes while it is encoded."""

_CONVERSIONS: dict[str | None, Callable[[str], str]] = {None: str, "t": str.strip, "c": str.capitalize}


class _Part(NamedTuple):
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


def _parse(text: str, where: str) -> list[_Part]:
    parts = []
    try:
        for literal, name, specification, conversion in string.Formatter().parse(text):
            if name is not None and (specification or not name.isidentifier()):
                raise LoopscopeError(f"{where}: {{{name}}} in {text!r} must be a plain field name like {{question}}")
            if conversion not in _CONVERSIONS:
                raise LoopscopeError(f"{where}: !{conversion} in {text!r} is not known; there are !t and !c")
            parts.append(_Part(literal, name, conversion))
    except ValueError as error:
        raise LoopscopeError(
            f"{where}: {text!r} is not a template ({error}); write {{{{ and }}}} for braces"
        ) from error
    return parts
