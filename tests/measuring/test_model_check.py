"""Models that are wrong in one way each: the check names it, `measure` refuses it; right ones pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import loopscope as ls
from loopscope.api import measure_with
from loopscope.errors import LoopscopeError
from loopscope.measuring.model_check import ModelCheck
from loopscope.models.protocol import BodyAndHead

WIDTH, VOCABULARY = 8, 1024


class Good(ls.LoopedModule):
    """Causal averages, a step embedding, a softcapped readout with values from the context."""

    name = "mine"

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden_size, self.vocabulary_size, self.trained_depth = WIDTH, VOCABULARY, 3
        self.tokenizer = "toy-ouro"
        self.words, self.values = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.times, self.turn = nn.Embedding(16, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def embed(self, batch: ls.Batch) -> ls.Context:
        state = self.words(batch.input_ids)
        return ls.Context(state, batch, rowwise={"value": self.values(batch.input_ids)})

    def mixed(self, state: Tensor) -> Tensor:
        counts = torch.arange(1, state.shape[1] + 1, dtype=state.dtype)[:, None]
        return state.cumsum(1) / counts

    def step(self, state: Tensor, context: ls.Context, *, depth: int) -> Tensor:
        return state + torch.tanh(self.turn(self.mixed(state)) + self.times.weight[depth])

    def hidden(self, state: Tensor, positions: Tensor | None, context: ls.Context) -> Tensor:
        state = torch.relu(state).square() + context.rowwise["value"].to(state.dtype)
        return state if positions is None else state[positions[:, 0], positions[:, 1]]

    def readout(
        self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None, *, context: ls.Context
    ) -> Tensor:
        dtype = dtype or self.dtype
        hidden = self.hidden(state.to(dtype), positions, context)
        logits = functional.linear(hidden, self.out.weight.to(dtype), self.out.bias.to(dtype))
        return 5.0 * torch.tanh(logits / 5.0)


class WrongSize(Good):
    def __init__(self) -> None:
        super().__init__()
        self.hidden_size = 2 * WIDTH


class NotFinite(Good):
    def step(self, state: Tensor, context: ls.Context) -> Tensor:  # type: ignore[override]
        return state / (state - state)


class Random(Good):
    def step(self, state: Tensor, context: ls.Context) -> Tensor:  # type: ignore[override]
        return functional.dropout(state, 0.5, training=True)


class Counter(Good):
    """Counts its steps on self, from 0 for each batch."""

    def embed(self, batch: ls.Batch) -> ls.Context:
        self.calls = 0
        return super().embed(batch)

    def step(self, state: Tensor, context: ls.Context) -> Tensor:  # type: ignore[override]
        self.calls += 1
        return super().step(state, context, depth=self.calls)


class Stashed(Good):
    """Keeps what embed saw for the readout."""

    def embed(self, batch: ls.Batch) -> ls.Context:
        context = super().embed(batch)
        self.value = context.rowwise["value"]
        return context

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: Any = None) -> Tensor:  # type: ignore[override]
        context = ls.Context(state, None, rowwise={"value": self.value})  # type: ignore[arg-type]
        return super().readout(state, positions, dtype, context=context)


class InPlace(Good):
    """Changes the state that it was given."""

    def step(self, state: Tensor, context: ls.Context, *, depth: int) -> Tensor:
        state += 0.1
        return super().step(state, context, depth=depth)


class ContextInPlace(Good):
    """Changes what the next readout sees."""

    def hidden(self, state: Tensor, positions: Tensor | None, context: ls.Context) -> Tensor:
        context.rowwise["value"] += 0.1
        return super().hidden(state, positions, context)


class Alike(Good):
    """Says that its steps do the same at every depth, and adds an embedding of the depth."""

    alike = True


class AcrossRows(Good):
    def mixed(self, state: Tensor) -> Tensor:
        return super().mixed(state) - state.mean(0, keepdim=True)


class FromTheRight(Good):
    """Positions counted from the end of the padded row."""

    def embed(self, batch: ls.Batch) -> ls.Context:
        context = super().embed(batch)
        places = self.times.weight[torch.arange(context.state.shape[1]).flip(0)]
        return ls.Context(context.state + places, batch, rowwise=context.rowwise)


class BothWays(Good):
    def step(self, state: Tensor, context: ls.Context) -> Tensor:  # type: ignore[override]
        valid = context.batch.attention_mask[..., None].to(state.dtype)
        mean = (state * valid).sum(1, keepdim=True) / valid.sum(1, keepdim=True)
        return state + torch.tanh(self.turn(mean))


class AllPositions(Good):
    def hidden(self, state: Tensor, positions: Tensor | None, context: ls.Context) -> Tensor:
        return super().hidden(state, None, context)


class Float32(Good):
    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: Any = None, *, context: Any) -> Tensor:
        return super().readout(state.float(), positions, torch.float32, context=context)


class RoundedFloat64(Good):
    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: Any = None, *, context: Any) -> Tensor:
        return super().readout(state.float(), positions, torch.float32, context=context).to(dtype or torch.float32)


class NoGradients(Good):
    @torch.no_grad()
    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: Any = None, *, context: Any) -> Tensor:
        return super().readout(state, positions, dtype, context=context)


class WrongHead(Good):
    """An affine head on a softcapped model."""

    @property
    def head(self) -> ls.AffineHead:
        return ls.AffineHead(self.out.weight, self.out.bias)


class WrongHalves(Good):
    def body_and_head(self, dtype: torch.dtype | None = None, *, context: ls.Context) -> BodyAndHead:
        out = self.in_dtype(self.out, dtype)
        return BodyAndHead(lambda state, positions: self.hidden(state, positions, context), out, VOCABULARY)


class WrongSharing(Good):
    unpadded = True


class StraightThrough(Good):
    """Rounds, and says that it does not when it is differentiated."""

    def hidden(self, state: Tensor, positions: Tensor | None, context: ls.Context) -> Tensor:
        hidden = super().hidden(state, positions, context)
        plain = getattr(hidden, "coefficients", hidden)
        return hidden if plain is not hidden else hidden + 0.3 * torch.sin(40.0 * hidden).detach()


class BareState(Good):
    def embed(self, batch: ls.Batch) -> Tensor:  # type: ignore[override]
        return self.words(batch.input_ids)


class Unread(ls.LoopedModule):
    """Has no readout."""

    name, hidden_size, vocabulary_size, trained_depth = "mine", WIDTH, VOCABULARY, 3

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)

    def embed(self, batch: ls.Batch) -> ls.Context:
        return ls.Context(self.words(batch.input_ids), batch)

    def step(self, state: Tensor, context: ls.Context) -> Tensor:  # type: ignore[override]
        return state


class Failing(Good):
    def step(self, state: Tensor, context: ls.Context, *, depth: int) -> Tensor:
        raise KeyError("no block 7")


BROKEN = [
    ("shapes", WrongSize, "hidden_size"),
    ("finite states", NotFinite, "depth 1: not finite"),
    ("determinism", Random, "states of two walks over the same batch differ by"),
    ("determinism", Counter, "states of two steps from the same state differ by"),
    ("determinism", Stashed, ""),
    ("determinism", InPlace, "states of two steps from the same state differ by"),
    ("determinism", ContextInPlace, "logits of two readouts of the same state differ by"),
    ("depth", Alike, "states of steps at two depths differ by"),
    ("independence", AcrossRows, "states of some rows alone differ by"),
    ("independence", FromTheRight, "states with and without padding differ by"),
    ("independence", BothWays, "states before a changed token differ by"),
    ("readout", AllPositions, r"\[3, 6, 1024\], not \[13, 1024\]"),
    ("gradient", Float32, "readout\\(dtype=torch.float64\\) gives torch.float32"),
    ("gradient", RoundedFloat64, "rounds to fewer digits"),
    ("gradient", NoGradients, "no way from the logits to the state"),
    ("readout", WrongHead, "logits of readout and of the head's affine map differ by"),
    ("readout", WrongHalves, "logits of body and head, and of readout, differ by"),
    ("independence", WrongSharing, "states of sequences that share a row differ by"),
    ("gradient", StraightThrough, "do not agree with"),
    ("shapes", BareState, "embed gives a Tensor: it must give loopscope.Context"),
    ("shapes", Failing, "KeyError: 'no block 7'"),
]


def test_a_model_without_a_readout_is_refused() -> None:
    with pytest.raises(ls.LoopscopeError, match="lacks readout"):
        ls.check(Unread())


def failed(found: ModelCheck) -> list[str]:
    return [verdict.check for verdict in found.failed]


def test_a_good_model_passes() -> None:
    found = ls.check(Good())
    assert found.passed, str(found)
    by_name = {verdict.check: verdict.passed for verdict in found.verdicts}
    assert [name for name, passed in by_name.items() if passed is None] == ["generation"]
    assert ls.check(Good(), dtype="float64").passed
    assert by_name["gradient"] is True


@pytest.mark.parametrize("name", ["toy-ouro", "toy-huginn"])
def test_ours_pass(name: str) -> None:
    found = ls.check(name)
    assert found.passed, str(found)


@pytest.mark.parametrize(("check", "kind", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_what_is_wrong_is_found(check: str, kind: type[Good], message: str) -> None:
    found = ls.check(kind())
    assert not found.passed
    assert check in failed(found), str(found)
    (verdict,) = [verdict for verdict in found.verdicts if verdict.check == check]
    assert re.search(message, verdict.found), verdict.found
    assert verdict.remedy


@pytest.mark.parametrize("kind", [WrongSize, BothWays, RoundedFloat64, NoGradients])
def test_measure_refuses_it(kind: type[Good], tmp_path: Path) -> None:
    with pytest.raises(LoopscopeError, match="mine fails the check") as caught:
        measure_with(
            kind(), "arithmetic", output=tmp_path / "run", transitions=[1], limit=1, device="cpu", level="full"
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_what_rests_on_a_failed_check_is_not_tried() -> None:
    """A model that draws at random would fail independence as well."""
    found = ls.check(Random())
    assert failed(found) == ["determinism"]
    assert [verdict.passed for verdict in found.verdicts] == [True, True, False, *[None] * 5]
