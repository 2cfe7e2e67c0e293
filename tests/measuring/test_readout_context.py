"""Steps that know their depth and readouts that read the context, at every level, against autograd by hand in FP64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.measuring import fp64, sequence_groups
from loopscope.measuring.batch_pass import BatchPass
from loopscope.measuring.batch_policy import BatchPolicy
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.plan import QuestionEncoder
from loopscope.models import load_tokenizer
from loopscope.models.base import LoopedModule
from loopscope.models.batch import Batch
from loopscope.models.layers.mask import causal_mask
from loopscope.models.protocol import BodyAndHead, Context, select
from loopscope.tasks.load import load_task

T, VOCABULARY, WIDTH = 2, 1024, 12


class Skip(LoopedModule):
    """A step with an embedding of its depth and a carry; a readout with ReLU², values of the context, a softcap."""

    name = "skip"
    shares_context = True

    def __init__(self) -> None:
        super().__init__()
        self.hidden_size, self.vocabulary_size, self.trained_depth = WIDTH, VOCABULARY, 4
        torch.manual_seed(1)
        self.tokens, self.values = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.times = nn.Embedding(8, WIDTH)
        self.mix, self.coda, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.double().requires_grad_(False)

    def embed(self, batch: Batch) -> Context:
        state = self.tokens(batch.input_ids)
        width = state.shape[1]
        seen = causal_mask(batch)
        causal = torch.ones(width, width, dtype=torch.bool).tril() if seen is None else seen[:, 0]
        attended = causal.double() / causal.sum(-1, keepdim=True).clamp(min=1)
        carry = torch.zeros_like(state)
        return Context(state, batch, extra=attended, carry=carry, rowwise={"value": self.values(batch.input_ids)})

    def step(self, state: Tensor, context: Context, *, depth: int, carry: Tensor) -> tuple[Tensor, Tensor]:
        mixed = context.extra @ state + self.times.weight[depth] + 0.1 * carry
        return state + torch.tanh(self.mix(mixed)), carry + mixed

    def readout(
        self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None, *, context: Context
    ) -> Tensor:
        dtype = dtype or state.dtype
        assert context.batch.input_ids.shape == state.shape[:2]
        state, value = state.to(dtype), context.rowwise["value"].to(dtype)
        past = torch.ones(state.shape[1], state.shape[1], dtype=dtype).tril()
        past = past / past.sum(1, keepdim=True)
        hidden = state + torch.relu(past @ self.coda.to(dtype)(state * value)).square() + value
        logits = functional.linear(select(hidden, positions), self.out.weight.to(dtype), self.out.bias.to(dtype))
        return 5.0 * torch.tanh(logits / 5.0)


class Halved(Skip):
    """The same without the softcap, as body and head."""

    def body_and_head(self, dtype: torch.dtype | None = None, *, context: Context) -> BodyAndHead:
        def body(state: Tensor, positions: Tensor | None) -> Tensor:
            value = context.rowwise["value"].to(state.dtype)
            return select(torch.tanh(state * value) + value, positions)

        return BodyAndHead(body, self.out.to(dtype), VOCABULARY)

    def readout(
        self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None, *, context: Context
    ) -> Tensor:
        return self.body_and_head(dtype, context=context)(state, positions)


def _alone(model: Skip, question: Any) -> Callable[[Tensor], Tensor]:
    """U(H + αD) of a question, each sequence in a batch of its own, by hand."""
    paths = []
    for sequence in question.example.sequences:
        context = model.embed(Batch.from_rows([sequence.token_ids]))
        state, carry = context.state, context.carry
        reached = []
        for depth in range(T + 1):
            state, carry = model.step(state, context, depth=depth, carry=carry)
            reached.append(state)
        paths.append((sequence, context, reached[T - 1], reached[T]))

    def utility(alpha: Tensor) -> Tensor:
        scores = []
        for sequence, context, before, after in paths:
            logits = model.readout(before + alpha * (after - before), context=context)[0]
            log_p = torch.log_softmax(logits, -1)[list(sequence.positions), list(sequence.targets)]
            scores.append(log_p.mean())
        joint = torch.stack(scores)
        answer = question.example.answer
        return joint[0] if answer is None else torch.log_softmax(joint, 0)[answer]

    return utility


def _derivatives(utility: Callable[[Tensor], Tensor], alpha: float) -> list[float]:
    at = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    found = [utility(at)]
    for _ in range(3):
        (next_one,) = torch.autograd.grad(found[-1], at, create_graph=True)
        found.append(next_one)
    return [float(value.detach()) for value in found]


@pytest.mark.parametrize(
    ("kind", "task", "share", "levels"),
    [
        (Skip, "arithmetic", False, ("quick", "grid")),
        (Skip, "arithmetic-mc", False, ("quick", "full")),
        (Skip, "arithmetic-mc", True, ("grid",)),
        (Halved, "arithmetic", False, ("quick", "grid")),
    ],
)
def test_every_level_agrees_with_autograd(
    kind: type[Skip], task: str, share: bool, levels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Few logits at a time: contexts are cut to groups of rows, and to groups of questions for the FP64 analysis.
    monkeypatch.setattr(sequence_groups, "LOGITS", VOCABULARY * 12)
    monkeypatch.setattr(fp64, "LOGITS", VOCABULARY * 24)
    monkeypatch.setattr(fp64, "PATH_NODES", 33)
    model = kind()
    loaded = load_task(task, limit=2)
    encoder = QuestionEncoder(load_tokenizer("toy-ouro"), None, "error", spans=False, share=share)
    questions = encoder.questions(loaded, loaded.rows, 0)
    tables = {}
    for level in levels:
        settings = MeasureConfig(
            model="toy-ouro",
            tasks=(),
            transitions=[T],
            depths=[],
            level=level,
            paths=level == "full",
            batch=BatchPolicy.parse(8),
            readout_dtype="float64",
            scalar_checks=1,
            share_context=share,
        )
        tables[level] = BatchPass(model, settings, questions).run()
    for index, question in enumerate(questions):
        utility = _alone(model, question)
        start, slope, second, third = _derivatives(utility, 0.0)
        end = float(utility(torch.tensor(1.0)))
        for level, found in tables.items():
            rows = {name: values[index] for name, values in found["questions"].items()}
            assert rows["slope"] == pytest.approx(slope, abs=1e-10)
            assert rows["quadratic"] == pytest.approx(0.5 * second, abs=1e-10)
            assert rows["gain"] == pytest.approx(end - start, abs=1e-10)
            if level != "quick" and index == 0:
                assert rows["scalar_quadratic"] == pytest.approx(0.5 * second, abs=1e-10)
            if level == "full":
                assert rows["fp64_slope"] == pytest.approx(slope, abs=1e-10)
                thirds = np.asarray(found["paths"]["third"])[index]
                assert thirds[0] == pytest.approx(third, abs=1e-10)
                assert thirds[16] == pytest.approx(_derivatives(utility, 0.5)[3], abs=1e-10)
