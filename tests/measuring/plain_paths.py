"""Updates of questions as plain float64 tensors, and U of any state written out: what fast paths are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopscope import Batch, load_model, load_tokenizer
from loopscope.models.walk import Walk, read
from loopscope.readout.autograd import differentiable_attention
from loopscope.tasks.encoding import Example, encode_row
from loopscope.tasks.load import load_task


def examples_of(folder: str, task: str, count: int | None = None) -> list[Example]:
    """The first questions of a task, encoded by the tokenizer of a folder."""
    loaded, tokenizer = load_task(task, limit=count), load_tokenizer(folder)
    return [encode_row(tokenizer, row, loaded.encoding) for row in loaded.rows]


@dataclass(frozen=True)
class PlainUpdate:
    """The states of one question's sequences, each by itself and unpadded, [1, S, D], before and after an update."""

    model: Any
    example: Example
    before: list[Tensor]
    after: list[Tensor]
    contexts: list[Any]

    def at(self, alpha: Any, rounding: torch.dtype | None = None) -> list[Tensor]:
        """H + αD, rounded if asked."""
        mixed = (h + alpha * (plus - h) for h, plus in zip(self.before, self.after, strict=True))
        return [state.to(rounding or state.dtype).to(state.dtype) for state in mixed]

    def log_p(self, states: Sequence[Tensor]) -> list[Tensor]:
        """Log probabilities at the prediction positions of every sequence, [N, V]."""
        read_out = (
            read(self.model, state, None, torch.float64, context)[0, list(sequence.positions)].double()
            for sequence, state, context in zip(self.example.sequences, states, self.contexts, strict=True)
        )
        return [torch.log_softmax(logits, -1) for logits in read_out]

    def scores(self, states: Sequence[Tensor]) -> Tensor:
        """Mean log probability of each sequence's reference."""
        pairs = zip(self.example.sequences, self.log_p(states), strict=True)
        return torch.stack([log_p[range(len(s.targets)), list(s.targets)].mean() for s, log_p in pairs])

    def utility(self, states: Sequence[Tensor]) -> Tensor:
        """Mean log probability of the reference, or log-softmax over the options' means."""
        scores, answer = self.scores(states), self.example.answer
        return scores[0] if answer is None else torch.log_softmax(scores, 0)[answer]

    def gain(self, alpha: float, rounding: torch.dtype | None = None) -> float:
        """φ(α)."""
        with torch.no_grad():
            return float(self.utility(self.at(alpha, rounding)) - self.utility(self.before))

    def derivatives(self, alpha: float, order: int = 2) -> list[float]:
        """Derivatives of φ by torch's reverse mode."""
        scale, found = torch.tensor(alpha, dtype=torch.float64, requires_grad=True), []
        with torch.enable_grad(), differentiable_attention():
            value = self.utility(self.at(scale))
            for _ in range(order):
                (value,) = torch.autograd.grad(value, scale, create_graph=True)
                found.append(value.item())
        return found


def updates_of(model: Any, examples: Sequence[Example], before: int, after: int | None = None) -> list[PlainUpdate]:
    """The updates between two depths, by default one loop; everything after the states is float64."""
    found = []
    for example in examples:
        update = PlainUpdate(model, example, [], [], [])
        for sequence in example.sequences:
            prompt = [sequence.positions[0] + 1]
            batch = Batch.from_rows([sequence.token_ids], source_rows=[example.source_row], prompt_lengths=prompt)
            with torch.no_grad():
                walk = Walk.of(model, batch).to(before)
                update.before.append(walk.state.double())
                update.after.append(walk.to(before + 1 if after is None else after).state.double())
                update.contexts.append(walk.context)
        found.append(update)
    return found


def plain_updates(
    folder: str, task: str, transition: int, count: int | None = None, dtype: str = "float32", args: str = ""
) -> list[PlainUpdate]:
    """The updates of a task's first questions, with states in a dtype."""
    model = load_model(folder, model_args=args, device="cpu", dtype=dtype)
    return updates_of(model, examples_of(folder, task, count), transition)
