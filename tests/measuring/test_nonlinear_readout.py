"""A readout with ReLU², value embeddings from the context and a softcap, after steps that know their depth:
A, Q and φ''' of a run against three backward passes in FP64; and readouts that Taylor mode does not know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import loopscope as ls
from loopscope.api import measure_with
from loopscope.measuring import fp64, readouts

VOCABULARY, WIDTH, CAP, T = 40, 12, 15.0, 2
PROMPTS, SOLUTIONS = [[3, 9, 27, 1], [5, 25], [7, 11, 13, 17, 19]], [[3, 9], [6, 7, 8], [1]]


class Modded(ls.LoopedModule):
    """A step with an embedding of its depth; a coda with ReLU² and value embeddings; capped logits."""

    name = "modded"

    def __init__(self, activation: Callable[[Tensor], Tensor] = lambda x: torch.relu(x).square()) -> None:
        super().__init__()
        self.hidden_size, self.vocabulary_size, self.trained_depth = WIDTH, VOCABULARY, 4
        self.activation = activation
        self.tokens, self.values = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.times = nn.Embedding(8, WIDTH)
        self.mix, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.down, self.out = nn.Linear(3 * WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        g = torch.Generator().manual_seed(3)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.4, generator=g)
        self.double()

    def embed(self, batch: ls.Batch) -> ls.Context:
        state = self.tokens(batch.input_ids)
        return ls.Context(state, batch, rowwise={"values": self.values(batch.input_ids)})

    def step(self, state: Tensor, context: ls.Context, *, depth: int) -> Tensor:
        seen = state.cumsum(1) / torch.arange(1, state.shape[1] + 1).unsqueeze(-1)
        return state + torch.tanh(self.mix(seen + self.times.weight[depth]))

    def readout(self, state: Tensor, positions: Any = None, dtype: Any = None, *, context: ls.Context) -> Tensor:
        seen = state.cumsum(1) / torch.arange(1, state.shape[1] + 1).unsqueeze(-1)
        x = state + 0.5 * seen * torch.sigmoid(context.rowwise["values"])
        x = x + self.down(self.activation(self.up(x)))
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        if positions is not None:
            x = x[positions[:, 0], positions[:, 1]]
        return CAP * torch.tanh(self.out(x) / CAP)


@pytest.fixture(scope="module")
def task() -> ls.Task:
    return ls.Task.from_ids(PROMPTS, SOLUTIONS)


@pytest.fixture(scope="module")
def run(task: ls.Task, tmp_path_factory: pytest.TempPathFactory) -> ls.Run:
    output = tmp_path_factory.mktemp("modded") / "run"
    options: dict[str, Any] = {"transitions": [T], "level": "full", "paths": True, "readout_dtype": "float64"}
    with pytest.MonkeyPatch.context() as patch:
        # Few logits at a time: contexts are cut to groups of rows, and to groups of questions for the FP64 analysis.
        patch.setattr(readouts, "LOGITS", VOCABULARY * 5)
        patch.setattr(fp64, "LOGITS", VOCABULARY * 5)
        return measure_with(Modded(), task, output=output, **options)


def test_slope_curvature_and_third_derivative_are_those_of_three_backward_passes(
    run: ls.Run, task: ls.Task, plain: Any
) -> None:
    assert run.backends_used == ("general",)
    records, paths = run.records.sort("row"), run.paths.collect().sort("row")
    for row, update in enumerate(plain.updates_of(Modded(), ls.load_task(task).encode(None), T)):
        first, second = update.derivatives(0.0)
        for prefix in ("", "fp64_"):
            assert records[f"{prefix}slope"][row] == pytest.approx(first, rel=1e-10, abs=1e-10)
            assert records[f"{prefix}quadratic"][row] == pytest.approx(second / 2, rel=1e-10, abs=1e-10)
        for place in (0, 128, 256):
            expected = update.derivatives(place / 256, 3)[2]
            assert paths["third"][row][place] == pytest.approx(expected, rel=1e-10, abs=1e-10)
            assert expected != 0.0


def unknown(x: Tensor) -> Tensor:
    """An operation that Taylor mode has no rule for."""
    return torch.special.i0(0.3 * x)


def test_nested_forward_mode_is_taken_and_said_once(
    task: ls.Task, plain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"transitions": [T], "level": "grid", "unit_size": 1, "scalar_checks": 0}
    options |= {"readout_dtype": "float64"}
    lines: list[str] = []
    run = measure_with(Modded(unknown), task, output=tmp_path / "run", notify=lines.append, **options)
    assert [line for line in lines if "nested forward mode" in line] == [
        "derivatives of the readout by nested forward mode, which is slower: "
        "Taylor mode has no rule for the torch operation 'special_i0'"
    ]
    assert run.backends_used == ("nested",)
    records = run.records.sort("row")
    for row, update in enumerate(plain.updates_of(Modded(unknown), ls.load_task(task).encode(None), T)):
        first, second = update.derivatives(0.0)
        assert records["slope"][row] == pytest.approx(first, rel=1e-10)
        assert records["quadratic"][row] == pytest.approx(second / 2, rel=1e-10)
    assert "Traceback" not in capsys.readouterr().err
