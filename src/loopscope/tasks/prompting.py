"""What stands before a question: few-shot examples, and the tokenizer's chat template around all of it.

Examples are drawn for each question by itself, from a seed and the question's source row, so that `limit` and `ids` do
not change them; a row with the question's own words is never among them. Without a chat template an example is its
prompt and its answer, and an empty line follows; with one, each is a turn of the user and one of the assistant.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from loopscope.errors import LoopscopeError, setting
from loopscope.tasks.encoding import LoadedTask, Row, canonical
from loopscope.tasks.template import check_size

FEWSHOT_SEED = 1234
"""What examples are drawn from unless another seed is given."""
FEWSHOT_DELIMITER = "\n\n"
"""What follows an example."""
MOST_FEWSHOT = 1_000
"""Examples before a question."""
POOL_ROWS = 10_000
"""Rows of a split that examples are drawn from: its first."""


class Chat(Protocol):
    """A chat template."""

    @property
    def sha256(self) -> str:
        """The hash of all that decides what is written."""
        ...

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation, up to where the model's answer begins."""
        ...


_HERE = "<the answer goes on here>"


def render_begun(chat: Chat, messages: Sequence[Mapping[str, str]]) -> str:
    """The text of a conversation whose last message is the beginning of the answer: nothing stands after it."""
    *before, last = messages
    # A blank ends the mark, so that a template that trims its messages shows.
    marked = [*before, {**last, "content": f"{last['content']}{_HERE} "}]
    text, _, rest = chat.render(marked, add_generation_prompt=False).rpartition(_HERE)
    return text if rest.startswith(" ") else text.rstrip()


def prompted(task: LoadedTask, pool: LoadedTask | None, count: int, seed: int, chat: Chat | None) -> LoadedTask:
    """The task with `count` examples of `pool` before each question, and as a conversation where there is a chat."""
    if not count and chat is None:
        return task
    if task.encoding == "ids":
        wanted = setting("apply_chat_template", True) if chat is not None else setting("num_fewshot", count)
        raise LoopscopeError(
            f"{task.spec} is rows of token ids, which stay as they are: leave out {wanted}, or put it into the prompts"
        )
    draw = _Draw(pool.rows, count, seed) if pool is not None and count else None
    rows = []
    for row in task.rows:
        examples = draw.examples(row) if draw is not None else []
        made = _as_text(row, examples) if chat is None else _as_chat(row, examples, chat)
        check_size(sum(len(made.context) + len(text) for text in made.texts), f"{task.spec}, question {row.id}")
        rows.append(made)
    shots = None if pool is None else [count, seed, pool.data_hash, pool.template_hash]
    decided = canonical([task.template_hash, shots, None if chat is None else chat.sha256])
    return dataclasses.replace(
        task,
        rows=tuple(rows),
        template_hash=hashlib.sha256(decided).hexdigest(),
        special_tokens=task.special_tokens and chat is None,
    )


class _Draw:
    """Examples for one question after the other."""

    def __init__(self, pool: Sequence[Row], count: int, seed: int) -> None:
        self._pool, self._count, self._seed = pool, count, seed
        self._alike = Counter(row.context for row in pool)

    def examples(self, row: Row) -> list[Row]:
        alike = self._alike[row.context]
        if len(self._pool) - alike < self._count:
            raise LoopscopeError(
                f"{setting('num_fewshot', self._count)}: there are only {len(self._pool) - alike} other rows for"
                f" question {row.id}; take fewer examples or name more rows with {setting('fewshot_split')}"
            )
        chance = random.Random(f"{self._seed}/{row.source_row}")
        drawn = chance.sample(range(len(self._pool)), self._count + alike)
        others = [self._pool[number] for number in drawn if self._pool[number].context != row.context]
        return others[: self._count]


def _right(row: Row) -> str:
    return row.continuations[row.answer or 0]


def _as_text(row: Row, examples: Sequence[Row]) -> Row:
    before = "".join(example.context + _right(example) + FEWSHOT_DELIMITER for example in examples)
    return dataclasses.replace(row, context=before + row.context)


def _as_chat(row: Row, examples: Sequence[Row], chat: Chat) -> Row:
    """The blank between context and option goes: the template says what stands between two turns."""
    messages = [
        {"role": role, "content": text}
        for example in examples
        for role, text in (("user", example.context), ("assistant", _right(example).strip()))
    ]
    messages.append({"role": "user", "content": row.context})
    options = row.answer is not None
    continuations = tuple(text.lstrip() if options else text for text in row.continuations)
    return dataclasses.replace(row, context=chat.render(messages), continuations=continuations)
