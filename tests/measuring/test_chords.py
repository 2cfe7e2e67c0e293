"""Updates from a state to one more than a loop later."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

import loopscope as ls
from loopscope.models import Batch
from loopscope.models.walk import Walk
from loopscope.report.question import question
from loopscope.store.schema import transition_of
from loopscope.studies.records import Records

CHORD = transition_of(1, 3)
CHOSEN = {"tasks": "stories", "limit": 3, "level": "grid", "tokens": True, "scales_to": 2, "dtype": "float32"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ls.Run:
    where = tmp_path_factory.mktemp("chords")
    return ls.measure("toy-ouro", transitions=["1>3", 2], output=where / "both", **CHOSEN)


def test_a_chord_is_an_update_between_its_ends(run: ls.Run) -> None:
    model = ls.load_model("toy-ouro", dtype="float64")
    tokens = run.tokens.filter(pl.col("transition") == CHORD).collect()
    texts = ls.load_task("stories", limit=3).encode(ls.load_tokenizer("toy-ouro"))
    for row, example in enumerate(texts):
        (sequence,) = example.sequences
        targets = torch.tensor(sequence.targets)
        with torch.no_grad():
            walk = Walk.of(model, Batch.from_rows([sequence.token_ids]))
            before, after = (walk.to(depth).read()[0, list(sequence.positions)] for depth in (1, 3))
        v, p = after - before, before.softmax(1)
        own = v.gather(1, targets[:, None])[:, 0]
        mean = (p * v).sum(1)

        def at(alpha: float, z: torch.Tensor = before, v: torch.Tensor = v, y: torch.Tensor = targets) -> np.ndarray:
            return -torch.nn.functional.cross_entropy(z + alpha * v, y, reduction="none").numpy()

        expected = {
            "slope": (own - mean).numpy(),
            "quadratic": (-0.5 * ((p * v * v).sum(1) - mean**2)).numpy(),
            "gain": at(1) - at(0),
            "quarter_gain": at(0.25) - at(0),
        }
        found = tokens.filter(pl.col("row") == row).sort("token")
        record = run.records.filter(pl.col("row") == row, pl.col("transition") == CHORD)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=2e-5, err_msg=name)
            if name != "quarter_gain":
                assert record[name].item() == pytest.approx(values.mean(), rel=1e-5, abs=1e-5)
        longer = run.read("longer_steps").filter(pl.col("row") == row, pl.col("transition") == CHORD)
        assert longer["gains"].item()[-1] == pytest.approx((at(2) - at(0)).mean(), rel=1e-5, abs=1e-5)


def test_a_chord_changes_nothing_else_and_is_named(run: ls.Run, tmp_path) -> None:
    alone = ls.measure("toy-ouro", transitions=[2], output=tmp_path / "one", **CHOSEN)
    for name in ("questions", "tokens"):
        assert_frame_equal(
            run.scan(name).filter(pl.col("transition") == 2).collect(), alone.scan(name).collect(), check_exact=True
        )
    depths = run.depths.filter(pl.col("depth") > 1)
    assert_frame_equal(depths, alone.depths, check_exact=True)
    assert run.depths.filter(pl.col("depth") == 1)["utility"].to_numpy() == pytest.approx(
        run.records.filter(pl.col("transition") == CHORD)["utility_before"].to_numpy(), abs=1e-5
    )
    assert [updates.condition.update for updates in Records([run]).updates] == ["2→3", "1→3"]
    assert "1→3" in str(run.table("mechanism"))
    assert "1→3" in question(run, run.examples["example_id"][0], "1>3", None, 1.0).title
    again = ls.measure("toy-ouro", transitions=[2, CHORD], output=run.path, **CHOSEN)
    assert again.records.equals(run.records)
