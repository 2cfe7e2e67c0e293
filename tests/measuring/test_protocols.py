"""The protocols of `measure`: what they set, that they identify a run, and what of it reaches the numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import loopscope as ls
from loopscope.api import measure_with
from loopscope.errors import LoopscopeError
from loopscope.models.families.decoder import SEED


def measured(output: Path, model: str = "toy-ouro", **more: Any) -> ls.Run:
    settings = {"transitions": [4], "level": "quick", "limit": 3, "device": "cpu", **more}
    return measure_with(model, ["arithmetic"], output=output, **settings)


@pytest.mark.parametrize("rule", ["question", "paper", "official"])
def test_the_rule_reaches_the_states(tmp_path: Path, rule: str) -> None:
    """Against draws with torch's own functions, into a batch that brings its own states."""
    run = measured(tmp_path / rule, "toy-huginn", initial_state=rule, dtype="float32", batch_size=1, limit=2)
    model = ls.load_model("toy-huginn", dtype="float32")
    drawn = model.initial_state
    task, tokenizer = ls.load_task("arithmetic", limit=2), ls.load_tokenizer("toy-huginn")
    for row, expected in zip(task.rows, run.depths.filter(run.depths["depth"] == 4)["utility"], strict=True):
        [sequence] = task.encode_row(tokenizer, row).sequences
        shape = (1, len(sequence.token_ids), drawn.width)
        torch.manual_seed(SEED + row.source_row)
        if rule == "question":
            state = drawn.draw([row.source_row], [shape[1]])
        else:
            if rule == "official":
                torch.randn(shape, dtype=torch.bfloat16)
            state = torch.empty(shape, dtype=torch.bfloat16)
            bound = 3 * drawn.std
            state = torch.nn.init.trunc_normal_(state, 0.0, drawn.std, -bound, bound) * drawn.scale
        batch = dataclasses.replace(ls.Batch.from_rows([sequence.token_ids]), initial_state=state)
        context = model.embed(batch)
        hidden = context.state
        for _ in range(4):
            hidden = model.step(hidden, context)
        log_p = model.readout(hidden, dtype=torch.float64).log_softmax(-1)[0]
        found = log_p[list(sequence.positions), list(sequence.targets)].mean()
        assert float(found) == pytest.approx(expected, abs=1e-4)


def test_rules_differ_and_belong_to_the_identity(tmp_path: Path) -> None:
    runs = {rule: measured(tmp_path / rule, "toy-huginn", initial_state=rule) for rule in ("paper", "official")}
    ours = measured(tmp_path / "ours", "toy-huginn")
    utilities = [tuple(run.depths["utility"]) for run in (*runs.values(), ours)]
    assert len(set(utilities)) == 3
    assert [run.manifest.initial_state for run in (*runs.values(), ours)] == ["paper", "official", "question"]
    with pytest.raises(LoopscopeError, match=r"initial_state was paper, is official"):
        measured(tmp_path / "paper", "toy-huginn", initial_state="official")
    with pytest.raises(LoopscopeError, match="initial_state was None, is paper"):
        measured(tmp_path / "ours", "toy-huginn", initial_state="paper")
