"""`loopscope reproduce`: the whole plan over small models and generated stand-ins for the benchmarks."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopscope.cli.app import exit_code
from loopscope.errors import LoopscopeError
from loopscope.measuring.config import PROTOCOLS, BatchPolicy
from loopscope.reproduction.reproduce import Reproduction, chosen_runs, paper_runs
from loopscope.run import Run
from loopscope.studies import FIGURES, TABLES
from loopscope.studies.paper import model_names, models, tables

OURO = {
    "architectures": ["OuroForCausalLM"], "model_type": "ouro", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "max_position_embeddings": 2048, "tie_word_embeddings": False,
    "total_ut_steps": 4, "early_exit_threshold": 1.0, "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16",
    "vocab_size": 1024,
}  # fmt: skip
HUGINN = {
    "architectures": ["RavenForCausalLM"], "model_type": "huginn_raven", "n_layers": 3, "n_layers_in_prelude": 1,
    "n_layers_in_recurrent_block": 1, "n_layers_in_coda": 1, "n_embd": 16, "n_heads": 1, "num_key_value_heads": 1,
    "head_dim": 16, "intermediate_size": 32, "bias": False, "injection_type": "linear", "state_init": "like-init",
    "qk_bias": True, "tie_embeddings": True, "norm_eps": 1e-6, "rope_base": 10000, "block_size": 2048,
    "mean_recurrence": 4, "init_values": {"std": 0.11, "embed_scale": 5.66}, "torch_dtype": "bfloat16",
    "vocab_size": 1024, "padded_vocab_size": 1024,
}  # fmt: skip
MODELS = {"ouro-1.4b": OURO, "ouro-2.6b": {**OURO, "num_hidden_layers": 3}, "huginn-0125": HUGINN}


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """`reproduce` with small configurations, without weights, under the names of the paper's models."""
    folder = tmp_path_factory.mktemp("models")
    for name, config in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    places = ",".join(f"{name}={folder / name}" for name in MODELS)
    fixed = ["--random-weights", "--stand-ins", "--limit", "2", "--device", "cpu", "--progress", "none"]

    def words(output: Path, *more: str) -> list[str]:
        return ["reproduce", *fixed, "--checkpoints", places, "--output", str(output), *more]

    return words


def test_a_part_of_the_plan_that_has_every_kind_of_run(
    command: Callable[..., list[str]], tmp_path: Path, capsys: Any
) -> None:
    models = ("ouro-1.4b", "huginn-0125")
    only = ("mechanism", "scale-bounds", "tokens", "refined-optima", "direction-progress", "scale-prediction")
    chosen = ("--models", ",".join(models), "--tasks", "math500,gsm8k", "--only", ",".join(only))
    assert exit_code(command(tmp_path, *chosen)) == 0
    said = capsys.readouterr()
    planned = chosen_runs(paper_runs(), only, models, ("math500", "gsm8k"))
    names = [run.name for run in planned]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(names)
    for name in TABLES:
        if any(name in run.studies for run in planned):
            text = (tmp_path / "tables" / f"{name}.txt").read_text()
            assert text.count("\n") > 3 or "nothing" in text or "note" in text, name
    for name in ("mechanism", "scale-bounds", "tokens"):
        lines = csv.DictReader((tmp_path / "tables" / f"{name}.csv").read_text().splitlines())
        assert {line["run"] for line in lines} == {run.name for run in planned if name in run.studies}
    compared = (tmp_path / "compare.txt").read_text()
    assert all(mark in compared for mark in ("✓ reproduces", "≈ within", "✗ differs"))
    assert "a rehearsal: " in compared, "random weights reproduce nothing, and it says so"
    assert "published cells have a counterpart" in said.err
    assert "stand-in for Ouro-1.4B" in (tmp_path / "paper" / "mechanism-matrix.txt").read_text()
    assert (tmp_path / "report.html").stat().st_size > 100_000
    for name in ("direction-progress", "scale-prediction"):
        assert (tmp_path / "figures" / f"{name}.pdf").is_file()
    assert all(f"{name} took " in said.err for name in names)
    run = Run(tmp_path / "runs" / "huginn-gsm8k-train256")
    assert (run.manifest.dtypes.states, run.manifest.level, run.manifest.batch.size) == ("bfloat16", "full", 32)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.parquet")}
    capsys.readouterr()
    assert exit_code(command(tmp_path, "--models", "ouro-1.4b", "--only", "tokens", "--verify")) == 0
    said = capsys.readouterr()
    assert "the states that the exit gate selects: 0 of 1 batches differ" in said.err
    assert (tmp_path / "runs" / "ouro-1.4b-tokens" / "verification.json").is_file()
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.parquet")}


def test_the_plan_says_what_it_takes(command: Callable[..., list[str]], tmp_path: Path, capsys: Any) -> None:
    chosen = ("--models", "ouro-1.4b", "--tasks", "gsm8k", "--only", "tokens")
    assert exit_code(command(tmp_path, "--plan", *chosen)) == 0
    said = capsys.readouterr().out
    assert "ouro-1.4b-tokens" in said
    assert "ouro-1.4b (random weights): 2 questions, " in said
    assert "  for tokens\n" in said
    assert "all runs (1)" in said
    assert "; the longest, ouro-1.4b-tokens, " in said
    assert not (tmp_path / "runs").exists()


def test_every_published_number_has_a_run() -> None:
    """Each row of each table of the paper: some run measures its model, set, update and arithmetic for that study."""
    runs = paper_runs()
    for table in tables():
        for row in table.rows:
            setting = row.setting
            if setting.measurement == "separate":
                continue  # a Huginn run whose settings the paper does not give
            wanted = f"{setting.task}:{setting.subset or setting.split}"
            found = [
                run
                for run in runs
                if model_names()[run.model] == setting.model
                and wanted in run.tasks
                and table.study in run.studies
                and (setting.transition is None or str(setting.transition) in _numbers(run.settings["transitions"]))
            ]
            assert found, (table.label, table.study, setting)


def _numbers(given: str) -> list[str]:
    first, _, last = given.partition("-")
    return [str(n) for n in range(int(first), int(last or first) + 1)]


def test_runs_have_the_batches_and_the_draw_that_a_comparison_asks_for() -> None:
    for run in paper_runs():
        protocol = run.settings["protocol"]
        batch = BatchPolicy.parse(run.settings.get("batch_size", PROTOCOLS[protocol]["batch_size"])).size
        for task in run.tasks:
            name = task.replace(":", "/")
            asked = {
                row.setting
                for table in tables()
                for row in table.rows
                if (row.setting.measurement, row.setting.evaluation_set) == (run.measurement, name)
                and models()[row.setting.model].family in run.model
            }
            assert {setting.batch for setting in asked} <= {batch, None}, run.name
            drawn = "paper" if protocol == "paper" else None
            assert {setting.initial_state for setting in asked} <= {drawn, None}, run.name


def test_studies_of_the_plan_exist_and_all_of_the_papers_are_in_it() -> None:
    named = {name for run in paper_runs() for name in run.studies}
    assert named <= set(TABLES) | set(FIGURES)
    papers = {name for name, study in (TABLES | FIGURES).items() if study.paper.startswith(("tab:", "fig:"))}
    assert {name for name in papers if name not in named} <= _BEYOND


def test_updates_alone_have_no_further_depths() -> None:
    chosen = chosen_runs(paper_runs("loopscope"), only=["mechanism"], updates_only=True)
    assert [run.name for run in chosen] == ["ouro-1.4b-matrix", "ouro-2.6b-matrix", "huginn-matrix"]
    assert [run.settings["transitions"] for run in chosen] == ["4", "4", "19"]
    assert not any("depths" in run.settings for run in chosen)
    assert {run.studies for run in chosen} == {("mechanism",)}, "what is not asked for is not written over"
    with pytest.raises(LoopscopeError, match="no run of the paper is left"):
        chosen_runs(paper_runs(), only=["option-responses"], updates_only=True)


# Studies with a label of their own that the paper does not have.
_BEYOND = {"certificates", "convergence", "families", "training"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ["mechansm"]}, "did you mean mechanism"),
        ({"models": ["llama"]}, "the paper has ouro-1.4b, ouro-2.6b, huginn-0125"),
        ({"tasks": ["mmlu"]}, "the paper has math500, gsm8k"),
        ({"models": ["huginn-0125"], "only": ["tokens"]}, "no run of the paper is left"),
    ],
)
def test_a_mistake_is_one_line(options: dict[str, list[str]], message: str) -> None:
    with pytest.raises(LoopscopeError, match=message):
        chosen_runs(paper_runs(), **options)
    with pytest.raises(LoopscopeError, match="did you mean paper"):
        paper_runs("papers")


def test_hashes_of_weights_are_given_after_their_folder(tmp_path: Path) -> None:
    runs = chosen_runs(paper_runs(), only=["tokens"])
    work = Reproduction(runs, tmp_path, checkpoints={"ouro-1.4b": f"{tmp_path}@sha256:{'a' * 64}"})
    assert work.config(runs[0]).model_spec == str(tmp_path)
    assert list(work.weights()) == [
        f"ouro-1.4b from {tmp_path}: judged as published if the SHA-256 of its 1 weight files are those given"
    ]
    with pytest.raises(LoopscopeError, match="give the whole SHA-256 of every weight file"):
        Reproduction(runs, tmp_path, checkpoints={"ouro-1.4b": f"{tmp_path}@sha256:aa"})
