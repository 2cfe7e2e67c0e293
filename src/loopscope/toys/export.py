"""Writes a trained model as the checkpoint folder of its family: config.json, model.safetensors, tokenizer.json.

Greedy answers: what share of held-out problems a model solves, by number of operations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save
from tokenizers import Tokenizer

from loopscope.models.generate import generate
from loopscope.models.protocol import LoopedModel
from loopscope.tasks.arithmetic.solution import answer_of
from loopscope.tasks.arithmetic.task import answer_context, problem, solution_context
from loopscope.toys.build import Toy
from loopscope.toys.recipe import END_ID, Recipe
from loopscope.toys.state import write_atomically

LIMIT = 8_000_000
"""The most bytes an embedded model's folder may take."""


def export(model: Toy, recipe: Recipe, tokenizer: Tokenizer, folder: Path) -> int:
    """Rounds the weights to BF16 and writes the folder; returns its size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    left_out = model.tied_tensors()
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name not in left_out
    }
    files = {
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
        "config.json": (json.dumps(dict(recipe.config), indent=2) + "\n").encode(),
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
    }
    for name, data in files.items():
        write_atomically(folder / name, data)
    size = sum(len(data) for data in files.values())
    if size > LIMIT:
        raise AssertionError(f"{recipe.name} takes {size} bytes, more than {LIMIT}")
    return size


LONGEST_SOLUTION, LONGEST_ANSWER = 200, 6
"""More tokens than any reference solution or answer has."""


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


def greedy_accuracy(
    model: LoopedModel,
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
        new = generate(
            model,
            prompts,
            max_new_tokens=LONGEST_ANSWER if direct else LONGEST_SOLUTION,
            depth=depth,
            eos_ids=[END_ID],
            source_rows=indices,
        ).tokens
        for one, tokens in zip(made, new, strict=True):
            text = tokenizer.decode(tokens)
            result.add(one.operations, answer_of("Answer:" + text if direct else text) == one.answer)
    return result
