"""Updates of a run as plain tensors in float64, and U of any state written out: what fast paths are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from loopscope.measuring.batching import collate, encode_task
from loopscope.models.load import load_model
from loopscope.models.tokenizer import load_tokenizer
from loopscope.models.walk import Walk, read
from loopscope.store import StoredRun
from loopscope.tasks.load import load_task

Pass = Callable[..., StoredRun]


@dataclass(frozen=True)
class PlainUpdate:
    """The states of one question's sequences, one after the other, before and after an update."""

    model: Any
    question: Any
    before: torch.Tensor
    after: torch.Tensor
    valid: torch.Tensor

    def utility(self, state: torch.Tensor) -> torch.Tensor:
        """Mean log probability of the reference, or log-softmax over the options' means."""
        scores = []
        for row, sequence in enumerate(self.question.example.sequences):
            places = torch.tensor([[row, place] for place in sequence.positions])
            logits = read(self.model, state, places, torch.float64)
            log_p = torch.log_softmax(logits.double(), -1)
            scores.append(log_p[torch.arange(len(places)), list(sequence.targets)].mean())
        answer = self.question.example.answer
        return scores[0] if answer is None else torch.log_softmax(torch.stack(scores), 0)[answer]


def plain_updates(folder: str, run: StoredRun, task: str, transition: int) -> Iterator[PlainUpdate]:
    """The updates of a run's questions at one transition, each question alone."""
    model: Any = load_model(folder, device="cpu")
    loaded = load_task(task, limit=run.manifest.tasks[0].rows)
    for question in encode_task(loaded, load_tokenizer(folder), None, "error").questions:
        batch = collate([question]).batch
        with torch.no_grad():
            walk = Walk.of(model, batch).to(transition)
            before = walk.state.double()
            after = walk.advance().double()
        yield PlainUpdate(model, question, before, after, batch.attention_mask)
