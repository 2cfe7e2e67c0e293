"""Greedy answers: what share of held-out problems a model solves, by number of operations.

Decoding is plain: every new token reruns the whole batch, without a cache. The problems are short and the models
small; what is computed is then nothing but embed, step and readout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer
from torch import Tensor

from loopscope.models.batch import Batch
from loopscope.models.huginn import Huginn
from loopscope.tasks.arithmetic.generate import problem
from loopscope.tasks.arithmetic.solution import answer_of
from loopscope.tasks.arithmetic.task import answer_context, solution_context
from loopscope.toys.build import Toy
from loopscope.toys.tokenizer import END_ID


@dataclass
class Accuracy:
    """Right answers and problems by number of operations."""

    right: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)

    def add(self, operations: int, is_right: bool) -> None:
        """Counts one problem."""
        self.right[operations] = self.right.get(operations, 0) + is_right
        self.asked[operations] = self.asked.get(operations, 0) + 1

    def share(self, fewest: int = 0, most: int = 99) -> float:
        """The share of right answers among problems of `fewest` to `most` operations."""
        chosen = [count for count in self.asked if fewest <= count <= most]
        return sum(self.right[count] for count in chosen) / max(1, sum(self.asked[count] for count in chosen))

    def __str__(self) -> str:
        parts = [f"{count} ops {self.right[count]}/{self.asked[count]}" for count in sorted(self.asked)]
        return f"{', '.join(parts)}; up to four {self.share(most=4):.1%}, all {self.share():.1%}"


@torch.no_grad()
def greedy(
    model: Toy,
    prompts: Sequence[Sequence[int]],
    depth: int,
    *,
    source_rows: Sequence[int],
    most_new: int = 200,
    stop: Callable[[list[int]], bool] | None = None,
) -> list[list[int]]:
    """The most likely continuation of each prompt after `depth` loops, without the end token.

    A row ends at the end token, at `most_new` tokens, or where `stop` says so of its new tokens.
    """
    rows = [list(prompt) for prompt in prompts]
    open_rows = list(range(len(rows)))
    states: Tensor | None = None
    longest = max(len(row) for row in rows) + most_new
    if isinstance(model, Huginn):
        states = model.draw_initial_state(source_rows, [longest] * len(rows), longest)
    for _ in range(most_new):
        current = [rows[index] for index in open_rows]
        batch = Batch.from_rows(current, pad_id=END_ID)
        if states is not None:
            width = batch.input_ids.shape[1]
            batch = Batch(batch.input_ids, batch.attention_mask, initial_state=states[open_rows, :width])
        context = model.embed(batch)
        state = context.state
        for _ in range(depth):
            state = model.step(state, context)
        last = torch.tensor([[place, len(row) - 1] for place, row in enumerate(current)])
        chosen = model.readout_cached(state, context, last).argmax(dim=-1).tolist()
        still_open = []
        for index, token in zip(open_rows, chosen, strict=True):
            if token == END_ID:
                continue
            rows[index].append(token)
            if stop is None or not stop(rows[index][len(prompts[index]) :]):
                still_open.append(index)
        open_rows = still_open
        if not open_rows:
            break
    return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]


def greedy_accuracy(
    model: Toy,
    tokenizer: Tokenizer,
    *,
    problems: int,
    depth: int | None = None,
    split: str = "test",
    direct: bool = False,
    batch: int = 250,
) -> Accuracy:
    """Solves the first problems of a split; `direct` asks for the bare answer instead of a worked solution."""
    result = Accuracy()
    for first in range(0, problems, batch):
        indices = list(range(first, min(first + batch, problems)))
        made = [problem(split, index) for index in indices]
        texts = [answer_context(one.story) if direct else solution_context(one.question) for one in made]
        prompts = [tokenizer.encode(text).ids for text in texts]
        new = greedy(
            model,
            prompts,
            depth or model.trained_depth,
            source_rows=indices,
            most_new=6 if direct else 200,
        )
        for one, tokens in zip(made, new, strict=True):
            text = tokenizer.decode(tokens)
            result.add(one.operations, answer_of("Answer:" + text if direct else text) == one.answer)
    return result
