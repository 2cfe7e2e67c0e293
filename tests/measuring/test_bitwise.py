"""`verify --bitwise`: what is the same is counted, and one changed bit of a number or a loop is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

import loopscope as ls
from loopscope.api import measure_with
from loopscope.cli.app import app
from loopscope.measuring.batching import collate, encode_task
from loopscope.measuring.verify import UTILITIES, acted, selected, walked
from loopscope.models.protocol import ExitGate
from loopscope.store import StoredRun, verify
from loopscope.store.verification import stored_verification
from loopscope.store.writer import open_or_create

HOW: dict[str, Any] = {"device": "cpu", "unit_size": 2, "level": "quick"}


@pytest.fixture(scope="module")
def run(checkpoint: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """A small Ouro with token rows, three questions in two units."""
    return measure_with(
        checkpoint("ouro"), "arithmetic", output=tmp_path_factory.mktemp("bitwise") / "run", transitions=2, limit=3,
        tokens=True, **HOW,
    )  # fmt: skip


def altered(run: StoredRun, output: Path, change: Callable[[str, pl.DataFrame], pl.DataFrame]) -> Path:
    """The same run with a sound record of something else in its second unit."""
    with open_or_create(output, run.manifest) as writer:
        for unit in run.units:
            tables = {t.name: pl.DataFrame(run.read_shard(t.name, unit)) for t in run.manifest.tables()}
            if unit.index == 1:
                tables = {name: change(name, frame) for name, frame in tables.items()}
            writer.commit(unit, {name: frame.to_arrow() for name, frame in tables.items()})
        writer.finish()
    return output


def _next(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """One utility becomes the next float64."""
    if name != "depths":
        return frame
    values = frame["utility"].to_numpy().copy()
    values[0] = np.nextafter(values[0], np.inf)
    return frame.with_columns(pl.Series("utility", values))


def test_everything_the_same(run: StoredRun):
    result = ls.Run(run.path).verify(bitwise=True)
    assert result.ok
    stored = stored_verification(run)
    assert stored is not None
    assert [each.what for each in stored.comparisons] == [
        "the first 4 loops, alone and on the way to 5",
        "the states that the exit gate selects",
        UTILITIES,
        *(f"the table {name}" for name in ("examples", "questions", "depths", "tokens")),
    ]
    for each in stored.comparisons:
        assert (each.differing, each.largest) == (0, 0.0)
        assert each.compared > 0
        assert each.of == "values" or each.compared == 2
    depths = run.read("depths")
    single = [name for name, kind in depths.schema.items() if not isinstance(kind, pl.List)]
    assert stored.comparisons[5].compared == depths.height * len(single)
    assert result.replayed is not None
    assert "first 4 loops" in str(result.replayed.comparisons[0])


def test_a_changed_bit_of_a_number_is_reported_and_stored(run: StoredRun, tmp_path: Path):
    path = altered(run, tmp_path / "run", _next)
    assert verify(path).ok, "its records are sound"
    shown = CliRunner().invoke(app, ["verify", "--bitwise", str(path)])
    assert shown.exit_code != 0
    assert "the first 4 loops, alone and on the way to 5: 0 of 2 batches differ, largest difference 0" in shown.output
    assert "replay: depths.utility: the table depths: 1 of " in shown.output
    assert "everything measured again" in shown.output
    stored = stored_verification(StoredRun(path))
    assert stored is not None
    different = [each for each in stored.comparisons if each.differing]
    assert [each.what for each in different] == [UTILITIES, "the table depths"]
    assert all(each.differing == 1 and 0 < (each.largest or 0) < 1e-13 for each in different)


def test_a_loop_that_changes_an_earlier_state_is_found(checkpoint: Callable[[str], str], monkeypatch: Any):
    model: Any = ls.load_model(checkpoint("ouro"))
    loaded = ls.load_task("arithmetic", limit=1)
    packing = collate(encode_task(loaded, ls.load_tokenizer(checkpoint("ouro")), None, "error").questions)
    step = type(model).step

    def careless(self: Any, state: torch.Tensor, context: Any, **known: Any) -> torch.Tensor:
        made = step(self, state, context, **known)
        state[0, 0, 0] += 1.0  # the state that was given, after it was used
        return made

    with torch.no_grad():
        alone, on_the_way = (walked(model, packing, 4, further)[-1] for further in (4, 5))
        assert torch.equal(alone, on_the_way)
        monkeypatch.setattr(type(model), "step", careless)
        alone, on_the_way = (walked(model, packing, 4, further)[-1] for further in (4, 5))
        assert not torch.equal(alone, on_the_way)


@pytest.mark.parametrize("rule", ["cdf", "threshold"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_policy_that_acts_selects_what_the_whole_trajectory_says(rule: Any, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(5)
    states = [torch.randn(3, 7, 4, generator=generator).to(dtype) for _ in range(5)]
    gate = ExitGate(lambda state, _: state[..., 0], 0.7, 5, rule)
    chosen = selected(gate, 0.7, states)
    assert torch.equal(chosen, acted(gate, 0.7, states))
    sources = [(chosen == state).all(-1) for state in states]
    assert sum(bool(source.any()) for source in sources) > 2, "positions exit at several depths"
