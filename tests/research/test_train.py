"""Training of the embedded models, a few steps of tiny ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import loopscope as ls
from research.toys import recipe as recipes
from research.toys.train import train

SMALL = recipes.Mixture(batch_tokens=1216, shard_problems=24, widths=(144, 224, 608))
OURO = recipes.ouro_config(32, 64, 2, 2, 3)
HUGINN = recipes.embedded_config("toy-huginn") | {
    "head_dim": 16, "intermediate_size": 64, "n_embd": 32, "n_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize(("family", "config"), [("ouro", OURO), pytest.param("huginn", HUGINN, marks=pytest.mark.slow)])
def test_a_few_steps_train_watch_and_export(family: str, config: dict, tokenizer, tmp_path: Path) -> None:
    weights = (0.0, 0.5, 0.5)
    recipe = recipes.Recipe(
        "tiny", family, config, 1.0, SMALL, depth_weights=weights, drawn=family == "ouro", warmup_steps=2,
        gate_steps=2 * (family == "ouro"), earlier=(recipes.Stretch(0.5, SMALL, 0.45),),
    )  # fmt: skip
    trained = {}
    for name, more in (("alone", {}), ("watched", {"monitor_every": 2, "save_every": 2})):
        trained[name] = train(recipe, tmp_path / name, steps=4, device="cpu", tokenizer=tokenizer, **more)
    first, second = (trainer.model.state_dict() for trainer in trained.values())
    assert all(torch.equal(first[name], second[name]) for name in first), "the same again, watched or not"
    folder = tmp_path / "watched"
    assert json.loads((folder / "curves.json").read_text())[-1]["step"] == 4
    assert len((folder / "monitor.jsonl").read_text().splitlines()) > 2
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"step-2", "step-4"}
    model = ls.load_model(str(folder), dtype="float32")
    assert model.trained_depth == 3
    run = ls.measure(model, "stories", transitions=[3], limit=1, level="quick", output=tmp_path / "run")
    assert len(run.records) == 1
