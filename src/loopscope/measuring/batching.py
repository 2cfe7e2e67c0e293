"""From a task's rows to questions, and from questions to batches.

Every question is encoded once and whole, and a unit's batches follow from its examples and the policy, never from what
was measured before, so that a resumed run has the batches of an undisturbed one. Only a batch that did not fit into
memory changes that: see `shrunk`.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.config import BatchPolicy
from loopscope.models.batch import Group, Packing, common_prefix, pack
from loopscope.tasks.encoding import Encoder, Example, LengthPolicy, LoadedTask, Row, Split, fit_lengths


class Span(NamedTuple):
    """Where a token stands in its reference or option text, in characters."""

    start: int
    end: int


@dataclass(frozen=True)
class Question:
    """An encoded example and its place in the run.

    Attributes:
        row: position of the example in this run's task, from 0.
        example: its sequences.
        text: the same as text.
        spans: for each sequence the place of each reference token in the text; None where nobody asked.
        shared: leading tokens that its options have in common and that run once; 0 where each runs its own.
    """

    row: int
    example: Example
    text: Row
    spans: tuple[tuple[Span, ...], ...] | None = None
    shared: int = 0

    @cached_property
    def positions(self) -> int:
        """Tokens of all its sequences."""
        return sum(len(sequence.token_ids) for sequence in self.example.sequences)

    @cached_property
    def group(self) -> Group:
        """Its sequences as they go into a batch."""
        sequences = self.example.sequences
        prompts = [sequence.positions[0] + 1 for sequence in sequences]
        return Group([s.token_ids for s in sequences], self.shared, self.example.source_row, prompts)


@dataclass(frozen=True)
class EncodedTask:
    """A task whose rows are chosen and encoded.

    Attributes:
        task: where the rows come from, without them.
        questions: those that are measured, in order; `row` of the tables counts them.
        skipped: identifiers left out by the length policy.
        limit: the limit that was given for the task.
    """

    task: LoadedTask
    questions: tuple[Question, ...]
    skipped: tuple[str, ...] = ()
    limit: int | None = None


def encode_task(
    task: LoadedTask,
    tokenizer: Encoder | None,
    allowed: int | None,
    policy: LengthPolicy,
    *,
    limit: int | None = None,
    spans: bool = False,
    share: bool = False,
) -> EncodedTask:
    """Encode every row once: what is longer than `allowed` is refused, cut or left out, as the policy says.

    `spans` asks for the tokens' places in the text, `share` for what the options of a question have in common.
    """
    allowed, examples = sys.maxsize if allowed is None else allowed, list(task.encode(tokenizer))
    try:
        fitted = fit_lengths(examples, allowed, policy)
    except LoopscopeError as error:
        raise LoopscopeError(f"{task.spec}: {error}; {setting('long')} chooses the policy") from error
    questions: list[Question] = []
    for row, example in zip(task.rows, fitted, strict=True):
        if example is not None:
            places = token_spans(tokenizer, row, example, task.encoding) if spans else None
            shared = common_prefix([sequence.token_ids for sequence in example.sequences]) if share else 0
            questions.append(Question(len(questions), example, row, places, shared))
    skipped = tuple(row.id for row, example in zip(task.rows, fitted, strict=True) if example is None)
    return EncodedTask(task.without_rows(), tuple(questions), skipped, limit)


def token_spans(tokenizer: Any, row: Row, example: Example, split: Split) -> tuple[tuple[Span, ...], ...] | None:
    """For each sequence the characters of its reference or option text that each scored token covers.

    A token that begins before the text (a blank that belongs to the context) begins at 0. Tokens that share one
    character, as the bytes of an emoji do, share its place. Token ids have the text that stands for each. None for a
    tokenizer without offsets.
    """
    if row.ids is not None:
        ends = [list(accumulate(map(len, pieces), initial=0)) for pieces in row.ids.pieces]
        return tuple(tuple(Span(*place) for place in pairwise(places)) for places in ends)
    offsets_of = getattr(tokenizer, "offsets", None)
    if offsets_of is None:
        return None
    found = []
    for (lead, scored_text), sequence in zip(row.pairs, example.sequences, strict=True):
        before = "" if split == "separate" else row.context + lead
        offsets = offsets_of(before + scored_text)
        if offsets is None:
            return None
        places = [(max(start - len(before), 0), max(end - len(before), 0)) for start, end in offsets]
        scored = places[-len(sequence.targets) :]
        found.append(tuple(Span(start + len(lead), end + len(lead)) for start, end in scored))
    return tuple(found)


def example_columns(questions: Sequence[Question]) -> dict[str, list[Any]]:
    """The table of texts: what was asked, so that a run can be read without its data set."""
    columns: dict[str, list[Any]] = defaultdict(list)
    for question in questions:
        example, text = question.example, question.text
        metadata: dict[str, object] = dict(example.metadata)
        difficulty = metadata.pop("difficulty", None)
        if text.ids is not None:
            metadata |= {"prompt_ids": text.ids.prompt, "continuation_ids": text.ids.continuations}
        row = {
            "row": question.row,
            "example_id": example.id,
            "source_row": example.source_row,
            "prompt": text.context,
            "reference": text.texts[0] if example.answer is None else None,
            "options": None if example.answer is None else text.texts,
            "correct_option": example.answer,
            "n_tokens": example.prediction_count,
            "difficulty": None if difficulty is None else str(difficulty),
            "metadata": json.dumps(metadata, sort_keys=True) if metadata else None,
        }
        for name, value in row.items():
            columns[name].append(value)
    return dict(columns)


def plan_batches(questions: Sequence[Question], policy: BatchPolicy) -> list[list[Question]]:
    """The batches of one unit, in the order in which they run.

    With a budget of padded tokens: neighbours by length, so that the batches' work is least. Work is the tokens that
    run, but a batch of less than a tenth of the budget, or of 1024, takes as long as one of that size: it leaves a
    device half idle, or its host busy starting operations. Of batches with the same work, as all may have that are not
    padded, the largest. By dynamic programming over where the last batch begins.
    """
    if policy.size is not None:
        return [list(questions[start : start + policy.size]) for start in range(0, len(questions), policy.size)]
    budget, unpadded = policy.budget, policy.padding == "none"
    assert budget is not None, "a policy has a size or a budget"
    # Longest first: if memory does not suffice, that shows at once and not after an hour.
    ordered = sorted(questions, key=lambda q: (-q.group.width, q.row))
    rows_of, widths, tokens_of = zip(*((q.group.rows, q.group.width, q.group.tokens) for q in ordered), strict=True)
    small = max(budget // 10, 1024)
    least, begins = [0], [0]
    for stop in range(1, len(ordered) + 1):
        found, begin, rows, tokens = math.inf, stop - 1, 0, 0
        for start in range(stop - 1, -1, -1):
            rows, tokens = rows + rows_of[start], tokens + tokens_of[start]
            padded = rows * widths[start]
            if padded > budget and start < stop - 1:
                break
            work = least[start] + max(tokens if unpadded else padded, small)
            if work < found or (unpadded and work == found):
                found, begin = work, start
        least.append(int(found))
        begins.append(begin)
    batches: list[list[Question]] = []
    stop = len(ordered)
    while stop:
        batches.append(ordered[begins[stop] : stop])
        stop = begins[stop]
    return batches[::-1]


def shrunk(batches: Iterable[Sequence[Question]], ceiling: int) -> list[list[Question]]:
    """The same batches, halved and halved again until each has at most `ceiling` padded tokens or one question."""
    fitting: list[list[Question]] = []
    for batch in batches:
        if len(batch) == 1 or padded_tokens(batch) <= ceiling:
            fitting.append(list(batch))
        else:
            middle = (len(batch) + 1) // 2
            fitting += shrunk([batch[:middle], batch[middle:]], ceiling)
    return fitting


def padded_tokens(questions: Sequence[Question]) -> int:
    """Tokens of a batch, padding included."""
    return max(q.group.width for q in questions) * sum(q.group.rows for q in questions)


def groups_within(counts: Sequence[int], most: int) -> Iterator[range]:
    """Neighbours in groups of at most `most` tokens; what has more than that by itself is a group of its own.

    >>> list(groups_within([3, 3, 7, 1, 2], 6))
    [range(0, 2), range(2, 3), range(3, 5)]
    """
    start = tokens = 0
    for index, count in enumerate(counts):
        if tokens and tokens + count > most:
            yield range(start, index)
            start, tokens = index, 0
        tokens += count
    if start < len(counts):
        yield range(start, len(counts))


def collate(questions: Sequence[Question], policy: BatchPolicy | None = None) -> Packing:
    """The sequences of the questions, one after the other; what options share stands once.

    Padded on the right, or all in one row where the policy says so or tokens are shared.
    """
    return pack([q.group for q in questions], unpadded=policy is not None and policy.padding == "none")
