"""The words of every question in packed chunks: decoded when a question is opened, or all at once for a search."""

from collections.abc import Iterator

from loopscope.report.evaluation_set import EvaluationSet
from loopscope.report.pack import pack

CHUNK_CHARACTERS = 200_000
"""A chunk is closed when it holds this many characters."""


class TextChunks:
    """Packed chunks, and the first question of each."""

    def __init__(self, data: EvaluationSet) -> None:
        self.starts: list[int] = []
        self.packed: list[str] = []
        for start, entries in _cut(data):
            self.starts.append(start)
            self.packed.append(pack({}, {"entries": entries}))


Entry = tuple[str, str | None, list[str] | None, int | None]
"""Prompt, reference, options, index of the right option."""


def _cut(data: EvaluationSet) -> Iterator[tuple[int, list[Entry]]]:
    start, entries, size = 0, list[Entry](), 0
    for entry in data.examples.select("prompt", "reference", "options", "correct_option").iter_rows():
        prompt, reference, options, _ = entry
        entries.append(entry)
        size += len(prompt) + len(reference or "") + sum(map(len, options or ()))
        if size >= CHUNK_CHARACTERS:
            yield start, entries
            start, entries, size = start + len(entries), [], 0
    if entries:
        yield start, entries
