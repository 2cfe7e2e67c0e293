"""The task `stories`: a document of four stories, of which the last three are scored.

There is nothing to solve. The reference is text that nobody could foretell word by word, some hundred tokens of it, so
that a model which knows the language still stays uncertain. Row i of a split is addressable, as in `arithmetic`, and
every story of a document has a wording of the document's split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import MappingProxyType

from loopscope.tasks.arithmetic.problem import Chooser, key
from loopscope.tasks.arithmetic.task import SEED, row_numbers
from loopscope.tasks.encoding import Encoder, Example, Kind, Row, encode_row
from loopscope.tasks.stories.story import document

STORIES = 4
"""Stories of a document: one to read, the others to be scored."""


@dataclass(frozen=True, slots=True)
class Stories:
    """Continuations of documents of several stories."""

    seed: int = SEED
    name: str = "stories"
    kind: Kind = "solution"

    def rows(self, split: str = "test", limit: int | None = None, ids: Iterable[str] | None = None) -> Iterator[Row]:
        """The documents of a split: the head and the first story as context, the others as the one continuation."""
        for index in row_numbers(self.name, split, limit, ids):
            head, (first, *others) = document(Chooser(key("stories", self.seed, split, index)), split, STORIES)
            yield Row(
                f"{split}-{index}", index, f"{head}\n{first}\n", ("\n".join(others),), None,
                MappingProxyType({"stories": len(others)}),
            )  # fmt: skip

    def encode(
        self, tokenizer: Encoder, split: str = "test", limit: int | None = None, ids: Iterable[str] | None = None
    ) -> Iterator[Example]:
        """The same rows, encoded."""
        return (encode_row(tokenizer, row) for row in self.rows(split, limit, ids))
