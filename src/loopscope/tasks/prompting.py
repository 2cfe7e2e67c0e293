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

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation, up to where the model's answer begins."""


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
    if task.encoding == "ids":
        wanted = setting("apply_chat_template", True) if chat is not None else setting("num_fewshot", count)
        raise LoopscopeError(
            f"{task.spec} is rows of token ids, which stay as they are: leave out {wanted}, or put it into the prompts"
        )
    alike = Counter(row.context for row in pool.rows) if pool is not None else Counter[str]()
    rows = []
    for row in task.rows:
        examples = _drawn(pool.rows, alike[row.context], row, count, seed) if pool is not None and count else []
        turns = [(example.context, example.continuations[example.answer or 0]) for example in examples]
        if chat is None:
            before = "".join(question + answer + FEWSHOT_DELIMITER for question, answer in turns)
            made = dataclasses.replace(row, context=before + row.context)
        else:
            pairs = [pair for question, answer in turns for pair in (("user", question), ("assistant", answer.strip()))]
            messages = [{"role": role, "content": text} for role, text in (*pairs, ("user", row.context))]
            # The blank between context and option goes: the template says what stands between two turns.
            texts = row.continuations if row.answer is None else tuple(text.lstrip() for text in row.continuations)
            made = dataclasses.replace(row, context=chat.render(messages), continuations=texts)
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


def _drawn(pool: Sequence[Row], alike: int, row: Row, count: int, seed: int) -> list[Row]:
    """The examples of a question; `alike` rows of the pool ask the same."""
    if len(pool) - alike < count:
        raise LoopscopeError(
            f"{setting('num_fewshot', count)}: there are only {len(pool) - alike} other rows for question {row.id};"
            f" take fewer examples or name more rows with {setting('fewshot_split')}"
        )
    drawn = random.Random(f"{seed}/{row.source_row}").sample(range(len(pool)), count + alike)
    return [pool[number] for number in drawn if pool[number].context != row.context][:count]
