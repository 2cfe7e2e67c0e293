"""What a task is to the rest of loopscope: a name, rows of text, and their encoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

from loopscope.tasks.encoding import Encoder
from loopscope.tasks.example import Example, Row

Kind = Literal["solution", "options"]


class Task(Protocol):
    """A benchmark: `solution` tasks score one reference text, `options` tasks K alternatives."""

    @property
    def name(self) -> str:
        """The name on the command line."""
        ...

    @property
    def kind(self) -> Kind:
        """How its examples are scored."""
        ...

    def rows(self, split: str, limit: int | None = None, ids: Iterable[str] | None = None) -> Iterator[Row]:
        """The rows of a split in source order: the first `limit`, or those with the given ids."""
        ...

    def encode(
        self, tokenizer: Encoder, split: str, limit: int | None = None, ids: Iterable[str] | None = None
    ) -> Iterator[Example]:
        """The same rows, encoded."""
        ...
