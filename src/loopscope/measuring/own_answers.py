"""The model's own answer as the reference (`--reference own`): what is measured then needs no label.

- A reference solution becomes the model's greedy continuation of the same prompt at its trained depth: as many tokens
  as the given reference has, or fewer where an end-of-text token comes first, which then is the last of them. It is
  teacher-forced like any other reference.
- Of options, the reference is the one that the model chooses at its trained depth: the highest length-normalised score,
  ties to the first. The options themselves stay.

The answers of a unit follow from the model and the unit's questions; where a model's arithmetic depends on the batch
(`loopscope verify --layout`), a near tie between two tokens may fall out otherwise in another batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.depth_pass import Trip
from loopscope.measuring.layout import Question, Span, plan_batches
from loopscope.measuring.progress import stage
from loopscope.measuring.settings import Settings
from loopscope.models.generate import generate
from loopscope.models.protocol import LoopedModel
from loopscope.models.tokenizer import Tokenizer
from loopscope.readout.checks import is_out_of_memory
from loopscope.store.column_types import Level
from loopscope.tasks.encoding import Scalar
from loopscope.tasks.encoding import Sequence as TokenSequence
from loopscope.tasks.token_ids import Pieces, shown_row

ENDED = "own_answer_ended"
"""Metadata of an own answer: whether it ended by itself, before the length of the given reference."""
GIVEN_OPTION = "given_option"
"""Metadata of an own option: the one that the task gives as right."""


class OwnAnswers:
    """Questions with the model's own answers in the place of the given ones."""

    def __init__(self, model: LoopedModel, tokenizer: Tokenizer | None, settings: Settings) -> None:
        depth = require_trained_depth(model.name, model.trained_depth)
        self._model, self._tokenizer, self._settings, self._depth = model, tokenizer, settings, depth
        self._pieces = Pieces(tokenizer)
        self._stops = frozenset(getattr(model, "eos_ids", ()))

    def __call__(self, questions: Sequence[Question]) -> list[Question]:
        """The same questions, in the same order."""
        with stage("own answers", self._model.device):
            batches = plan_batches(questions, self._settings.batch)
            found = {q.row: q for batch in batches for q in self._answered(batch)}
        return [found[question.row] for question in questions]

    def _answered(self, batch: Sequence[Question]) -> list[Question]:
        """Those of one batch; of its halves where memory does not suffice."""
        try:
            if batch[0].example.answer is not None:
                return list(self._chosen(batch))
            return list(self._continued(batch))
        except Exception as error:
            if len(batch) == 1 or not is_out_of_memory(error):
                raise
        middle = len(batch) // 2
        return self._answered(batch[:middle]) + self._answered(batch[middle:])

    def _chosen(self, batch: Sequence[Question]) -> Iterator[Question]:
        settings = Settings((), (self._depth,), Level.QUICK, readout_dtype=self._settings.readout_dtype)
        found = Trip(self._model, settings, batch).run()["depths"]
        chosen = dict(zip(found["row"].tolist(), found["chosen_option"], strict=True))
        for question in batch:
            given = question.example.answer
            example = dataclasses.replace(
                question.example,
                answer=chosen[question.row],
                metadata=_with(question.example.metadata, GIVEN_OPTION, given),
            )
            yield dataclasses.replace(question, example=example)

    def _continued(self, batch: Sequence[Question]) -> Iterator[Question]:
        for group in self._fitting(batch):
            given = [question.example.sequences[0] for question in group]
            prompts = [sequence.token_ids[: sequence.positions[0] + 1] for sequence in given]
            made = generate(
                self._model,
                prompts,
                max_new_tokens=max(len(sequence.targets) for sequence in given),
                depth=self._depth,
                eos_ids=(),  # an end of text is kept, so it is looked for below
                source_rows=[question.example.source_row for question in group],
            )
            for question, prompt, tokens, sequence in zip(group, prompts, made.tokens, given, strict=True):
                yield self._with_answer(question, prompt, self._cut(tokens[: len(sequence.targets)]))

    def _fitting(self, batch: Sequence[Question]) -> Iterator[Sequence[Question]]:
        """Groups whose longest prompt and longest answer fit into the model's positions together."""
        limit: int | None = getattr(self._model, "max_positions", None)
        group: list[Question] = []
        for question in batch:
            joined = [*group, question]
            if limit is not None and group and _prompt_of(joined) + _answer_of(joined) > limit:
                yield group
                joined = [question]
            group = joined
        yield group

    def _cut(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Up to and with the first end of text."""
        ends = [place for place, token in enumerate(tokens) if token in self._stops]
        return tuple(tokens[: ends[0] + 1] if ends else tokens)

    def _with_answer(self, question: Question, prompt: Sequence[int], answer: tuple[int, ...]) -> Question:
        first = len(prompt)
        places = tuple(range(first - 1, first + len(answer) - 1))
        example = dataclasses.replace(
            question.example,
            sequences=(TokenSequence((*prompt, *answer), places, answer),),
            metadata=_with(question.example.metadata, ENDED, answer[-1] in self._stops),
        )
        text = question.text
        if text.ids is not None:
            ids = text.ids._replace(continuations=(answer,), pieces=())
            text = shown_row(dataclasses.replace(text, ids=ids), self._pieces)
        else:
            assert self._tokenizer is not None, "texts came through a tokenizer"
            text = dataclasses.replace(text, continuations=(self._tokenizer.decode(answer),), leads=())
        spans = None if question.spans is None else (self._spans(answer),)
        return dataclasses.replace(question, example=example, text=text, spans=spans)

    def _spans(self, answer: tuple[int, ...]) -> tuple[Span, ...]:
        """Where each token stands in the decoded answer: between what is decoded without it and with it."""
        if self._tokenizer is None:
            lengths = [len("".join(self._pieces.of(answer[:n], "own answer"))) for n in range(len(answer) + 1)]
        else:
            lengths = [len(self._tokenizer.decode(answer[:n])) for n in range(len(answer) + 1)]
        # A character of several tokens may be decoded to more than itself until its last one.
        return tuple(Span(*(min(place, lengths[-1]) for place in places)) for places in pairwise(lengths))


def own_answers(model: LoopedModel, tokenizer: Tokenizer | None, settings: Settings) -> OwnAnswers | None:
    """What puts the model's own answers into questions, where the settings ask for that."""
    return OwnAnswers(model, tokenizer, settings) if settings.reference == "own" else None


def require_trained_depth(name: str, depth: int | None) -> int:
    """The depth of the model's own answers."""
    if depth is None:
        raise LoopscopeError(
            f"{name} does not say for how many loops it was trained: give the model a trained_depth, or leave out"
            f" {setting('reference', 'own')}"
        )
    return depth


def _prompt_of(questions: Sequence[Question]) -> int:
    return max(question.example.sequences[0].positions[0] + 1 for question in questions)


def _answer_of(questions: Sequence[Question]) -> int:
    return max(len(question.example.sequences[0].targets) for question in questions)


def _with(metadata: Mapping[str, Scalar], name: str, value: Scalar) -> Mapping[str, Scalar]:
    return MappingProxyType({**metadata, name: value})
