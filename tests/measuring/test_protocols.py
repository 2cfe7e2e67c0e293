"""The protocols of `measure`: what they set, that they identify a run, and what of it reaches the numbers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import loopscope as ls
from loopscope.api import measure_with
from loopscope.errors import LoopscopeError
from loopscope.measuring.protocols import PROTOCOLS
from loopscope.measuring.verify import measure_again
from loopscope.models.initial_state import SEED
from loopscope.store import verify


def measured(output: Path, model: str = "toy-ouro", **more: Any) -> ls.Run:
    settings = {"transitions": [4], "level": "quick", "limit": 3, "device": "cpu", **more}
    return measure_with(model, ["arithmetic"], output=output, **settings)


def test_what_the_papers_protocol_sets_and_what_stands_above_it(tmp_path: Path) -> None:
    manifest = measured(tmp_path / "paper", protocol="paper").manifest
    assert (manifest.protocol, manifest.settings["protocol"]) == ("paper", "paper")
    assert (manifest.batch.policy, manifest.batch.size) == ("paper", 2)
    assert (manifest.dtypes.states, manifest.dtypes.readout) == ("bfloat16", "float32")
    assert manifest.initial_state is None
    given = measured(tmp_path / "given", protocol="paper", batch_size=3, dtype="float32").manifest
    assert (given.batch.policy, given.dtypes.states, given.protocol) == ("questions", "float32", "paper")


def test_by_default_a_manifest_is_what_it_was_before_there_was_a_choice(tmp_path: Path) -> None:
    manifest = measured(tmp_path / "ours").manifest
    assert not {"protocol", "initial_state"} & manifest.settings.keys()
    assert (manifest.protocol, manifest.batch.policy) == ("loopscope", "tokens")


def test_a_run_is_not_resumed_under_another_protocol(tmp_path: Path) -> None:
    ours = measured(tmp_path / "run")
    same = {"batch_size": "auto", "dtype": ours.manifest.dtypes.states}
    with pytest.raises(LoopscopeError, match=r"resume refused: protocol was loopscope, is paper"):
        measured(tmp_path / "run", protocol="paper", **same)
    with pytest.raises(LoopscopeError, match=r"resume refused: protocol was loopscope, is paper"):
        measured(tmp_path / "run", protocol="paper")


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LoopscopeError, match="protocol='papers' is not known: did you mean paper"):
        measured(tmp_path, protocol="papers")
    with pytest.raises(LoopscopeError, match="toy-ouro draws no initial state: leave out initial_state='official'"):
        measured(tmp_path, initial_state="official")
    with pytest.raises(LoopscopeError, match="sequence by sequence: leave out share_context=True"):
        measured(tmp_path, "toy-huginn", initial_state="official", share_context=True)


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
        for depth in range(4):
            hidden = model.step(hidden, context, depth)
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


def test_a_model_in_memory_keeps_its_own_rule_and_dtype(tmp_path: Path) -> None:
    model = ls.load_model("toy-huginn", dtype="float32")
    tokenizer = ls.load_tokenizer("toy-huginn")
    run = measured(tmp_path / "run", model, protocol="paper", tokenizer=tokenizer)  # type: ignore[arg-type]
    assert (run.manifest.initial_state, run.manifest.dtypes.states) == ("paper", "bfloat16")
    assert (model.initial_state.rule, model.dtype) == ("question", torch.float32)


def test_a_run_under_the_papers_protocol_replays(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", "toy-huginn", protocol="paper")
    assert run.manifest.initial_state == "paper"
    assert verify(run.path, measure_again).ok


def test_the_paper_file_names_no_protocol_of_its_own() -> None:
    from loopscope.reproduction.paper_runs import paper_runs

    for name in PROTOCOLS:
        assert {run.settings["protocol"] for run in paper_runs(name)} == {name}
    assert not any("batch_size" in run.settings for run in paper_runs("loopscope"))
    assert json.dumps([dict(run.settings) for run in paper_runs("paper")]).count('"batch_size": "32"') == 1
