"""A griffe extension for `make docs`: examples in docstrings (`>>> …`) become code blocks, not quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

# A doctest: a line that begins with >>>, and all that follows up to a blank line.
_DOCTEST = re.compile(r"^( *)>>> (?:.+\n?)+", re.MULTILINE)


def fenced(text: str) -> str:
    """The text with a fence around every doctest."""
    return _DOCTEST.sub(lambda found: f"{found[1]}```pycon\n{found[0].rstrip()}\n{found[1]}```\n", text)


class FenceDoctests(griffe.Extension):
    """Applied to every docstring of the package."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each object it loads."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
