"""Seven ways to train a loop: each has a gradient of its own, and the experiment goes on where it stopped."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from loopscope.toys import training_ways as ways
from loopscope.toys.build import new_model
from loopscope.toys.objective import supervise
from loopscope.toys.recipe import Recipe, ouro_config

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "training_experiment.py"


@pytest.fixture
def make_step():
    model = new_model(Recipe("tiny", "ouro", ouro_config(16, 32, 1, 2, 4), minutes=1.0), 0)
    tokens = torch.randint(1, 1000, (4, 9), generator=torch.Generator().manual_seed(0))
    ends = torch.tensor([9, 9, 7, 5])
    asked = supervise(
        tokens, torch.ones_like(ends), ends, torch.full_like(ends, 2),
        prompt_weight=1.0, direct_weight=1.0, vocabulary=model.vocabulary_size,
    )  # fmt: skip
    return lambda progress=1.0: ways.Step(
        model, asked, np.random.default_rng(0), torch.Generator().manual_seed(0), progress
    )


SETTINGS = {
    ways.all_depths: (0.1, 0.2, 0.3, 0.4),
    ways.gate: 0.05,
    ways.random_loops: (2, 5.0),
    ways.fixed_point: 0.1,
    ways.jacobian: 0.1,
    ways.geometry: (1.0, 2.0),
}


@pytest.mark.parametrize("way", SETTINGS, ids=lambda way: way.__name__)
def test_every_way_has_a_gradient_of_its_own(make_step, way) -> None:
    found = []
    for loss in (ways.last_depth(make_step(), None), way(make_step(), SETTINGS[way])):
        weight = make_step().model.model.layers[0].mlp.up_proj.weight
        (gradient,) = torch.autograd.grad(loss, weight)
        assert bool(torch.isfinite(gradient).all())
        found.append(gradient)
    assert not torch.allclose(*found, rtol=1e-3, atol=0.0)


def test_the_weights_of_all_depths_are_those_of_a_sum(make_step) -> None:
    alone = [ways.all_depths(make_step(), tuple(float(depth == t) for t in range(4))) for depth in range(4)]
    weights = (0.1, 0.2, 0.3, 0.4)
    expected = sum(weight * loss for weight, loss in zip(weights, alone, strict=True))
    torch.testing.assert_close(ways.all_depths(make_step(), weights), expected)
    torch.testing.assert_close(ways.last_depth(make_step(), None), alone[-1])


def test_the_geometry_loss_comes_in_later_and_leaves_the_trained_depth_alone(make_step) -> None:
    growing = (3.0, 2.0)
    early, late = make_step(progress=0.1), make_step()
    expected = ways.gate(make_step(), ways.ENTROPY)
    torch.testing.assert_close(ways.geometry(early, growing), expected, rtol=0.0, atol=0.0)
    added, more = (ways.geometry(make_step(), (3.0, margin)) - expected for margin in (2.0, 8.0))
    assert more.item() > added.item() > 0
    embedding = late.model.model.embed_tokens.weight  # read by the loops up to the trained depth, and by none beyond
    (gradient,) = torch.autograd.grad(ways.geometry(make_step(), growing), embedding)
    (alone,) = torch.autograd.grad(ways.gate(make_step(), ways.ENTROPY), embedding)
    torch.testing.assert_close(gradient, alone)


def test_what_was_tuned_is_what_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = runpy.run_path(str(SCRIPT), run_name="training_experiment")
    path = tmp_path / "tuning.json"
    assert script["chosen"]("gate", script["Results"](path)) == 0.05
    falls, rests, slides = ([-9.0] * 3 + rest for rest in ([-1.0] * 12 + [-3.0], [-2.5] * 13, [-1.5] * 12 + [-2.0]))
    utilities = {0.05: falls, 0.1: rests, 0.02: slides}
    entries = {str(beta): {"way": "gate", "setting": beta, "utility": made} for beta, made in utilities.items()}
    path.write_text(json.dumps({**entries, "other": {"way": "fixed point", "setting": 7.0, "utility": [0.0] * 16}}))
    assert script["chosen"]("gate", script["Results"](path)) == 0.1  # loses nothing beyond depth 4
    del entries["0.1"]
    path.write_text(json.dumps(entries))
    assert script["chosen"]("gate", script["Results"](path)) == 0.02  # loses least from there on


def test_the_experiment_prints_its_tables_and_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))

    def run(folder: str, *more: str) -> str:
        flags = ["--size", "tiny", "--questions", "2", "--keep", str(tmp_path / folder), *more]
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *flags])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out

    both = ["--ways", "last depth", "geometry", "--seeds"]
    first, second, third = run("a", *both, "0"), run("a", *both, "0", "1", "--jobs", "2"), run("a", *both, "0", "1")
    assert "seed 0: utility" in first
    assert "seed 1: utility" not in first
    assert "seed 0: utility" not in second
    assert "seed 1: utility" in second
    assert third in second
    for row in ("| last depth | — |", "| geometry | 4→5 |", "| geometry | 15→16 |", "the goal: "):
        assert row in third
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    assert set(results) == {f"{way}, seed {seed}" for way in ("last depth", "geometry 6, 4") for seed in (0, 1)}
    assert all(len(entry["utility"]) == 16 and len(entry["updates"]) == 5 for entry in results.values())

    run("b", "--ways", "geometry", "--seeds", "1", "--watch", "2")
    watched = json.loads((tmp_path / "b" / "results.json").read_text())
    assert (
        watched["geometry 6, 4, seed 1"]["utility"] == results["geometry 6, 4, seed 1"]["utility"]
    )  # another process, unwatched
    (log,) = (tmp_path / "b").glob("*.jsonl")
    assert {json.loads(line).get("step") for line in log.read_text().splitlines()[1:]} == {2}


@pytest.mark.parametrize("file", ["training_experiment", "training_experiment_h200", "training_experiment_h200_tuning"])
def test_the_page_shows_what_the_kept_results_say(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    docs = SCRIPT.parents[1] / "docs"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--show", str(docs / "figures" / f"{file}.json")])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = capsys.readouterr().out.split("\n\n", 1)[1].splitlines()  # the trainings one by one are not on the page
    page = (docs / "training-experiment.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 15
    assert not set(lines) - set(page)
