"""Training: it learns, it resumes exactly, and what it writes is a checkpoint of its family."""

import dataclasses
import json
import pickle

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.load import load_model
from loopscope.models.tokenizer import load_tokenizer
from loopscope.models.walk import Walk
from loopscope.toys.budget import Budget, rate_factor
from loopscope.toys.build import compile_blocks, new_model
from loopscope.toys.recipe import RECIPES, Stretch, get_recipe
from loopscope.toys.train import train
from loopscope.toys.train_toy import Accuracy, greedy_accuracy


@pytest.fixture
def run(tokenizer):
    """Trains for some steps; returns the trainer and its progress lines."""

    def train_steps(recipe, folder, steps, report=None, **more):
        lines = []
        trainer = train(
            recipe,
            folder,
            Budget(steps=steps),
            seed=3,
            device="cpu",
            workers=0,
            report=report or lines.append,
            report_steps=4,
            tokenizer=tokenizer,
            **more,
        )
        return trainer, lines

    return train_steps


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("family", ["ouro", "huginn"])
def test_resumed_run_equals_an_uninterrupted_one(run, recipes, tmp_path, family):
    recipe = recipes[family]
    whole, _ = run(recipe, tmp_path / "whole", 12)

    def stop(line):
        if "step 8 " in line:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(recipe, tmp_path / "cut", 12, report=stop, save_seconds=0.0)
    resumed, lines = run(recipe, tmp_path / "cut", 12)
    assert "resuming at step 7" in lines[0]
    assert resumed.step == whole.step == 12
    assert resumed.place == whole.place
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_a_stretch_begins_with_new_optimisers_and_is_resumed_exactly(run, recipes, tmp_path):
    ouro = recipes["ouro"]
    bare = dataclasses.replace(ouro.mixture, direct_share=1.0, story_share=0.0)
    two = dataclasses.replace(ouro, mixture=bare, decay_from=0.8, earlier=(Stretch(0.5, ouro.mixture, 0.45),))
    whole, _ = run(two, tmp_path / "whole", 12)
    ages = {int(state["step"]) for state in whole.optimisers[1].state.values()}
    assert (whole.stretch, ages) == (1, {6})

    def stop(line):
        if "step 8 " in line:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(two, tmp_path / "cut", 12, report=stop, save_seconds=0.0)
    resumed, _ = run(two, tmp_path / "cut", 12)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    alone, _ = run(ouro, tmp_path / "alone", 12)
    assert not torch.equal(alone.model.lm_head.weight, whole.model.lm_head.weight)


def test_the_gate_is_trained_after_everything_else_which_stays(run, recipes, tmp_path):
    weighted = dataclasses.replace(recipes["ouro"], depth_weights=(0.0, 0.0, 1.0))
    without, _ = run(weighted, tmp_path / "without", 4)
    gated, lines = run(dataclasses.replace(weighted, gate_steps=30), tmp_path / "with", 4)
    gate = {name for name in gated.model.state_dict() if "early_exit_gate" in name}
    assert gate
    for name, weight in without.model.state_dict().items():
        assert torch.equal(weight, gated.model.state_dict()[name]) == (name not in gate), name
    assert any("30 steps for the gate, exits" in line for line in lines)
    assert all(weight.requires_grad for weight in gated.model.parameters())
    again, lines = run(dataclasses.replace(weighted, gate_steps=30), tmp_path / "with", 4)
    assert not any("for the gate" in line for line in lines), "done once"
    assert torch.equal(again.model.lm_head.weight, gated.model.lm_head.weight)


@pytest.mark.parametrize("family", ["ouro", "huginn"])
def test_loss_falls_and_curves_are_written(run, recipes, tmp_path, family):
    run(recipes[family], tmp_path, 40)
    curves = json.loads((tmp_path / "curves.json").read_text())
    assert curves[-1]["step"] == 40
    depth = max(curves[0]["loss_by_depth"], key=int)
    assert curves[-1]["loss_by_depth"].get(depth, 0.0) < curves[0]["loss_by_depth"][depth] - 0.8


def test_more_budget_trains_further(run, recipes, tmp_path):
    run(recipes["ouro"], tmp_path, 4)
    trainer, lines = run(recipes["ouro"], tmp_path, 8)
    assert trainer.step == 8
    assert "resuming at step 4" in lines[0]


def test_finished_run_does_not_train_again(run, recipes, tmp_path):
    run(recipes["ouro"], tmp_path, 4)
    before = (tmp_path / "model.safetensors").read_bytes()
    run(recipes["ouro"], tmp_path, 4)
    assert (tmp_path / "model.safetensors").read_bytes() == before


class Trap:
    """Unpickling this writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_state_holds_no_pickle_and_an_old_one_is_not_opened(run, recipes, tmp_path):
    run(recipes["ouro"], tmp_path, 2)
    with safe_open(tmp_path / "training.safetensors", "pt") as file:
        assert "/model/lm_head.weight" in file.keys()  # noqa: SIM118
    for path in tmp_path.iterdir():
        if path.suffix in (".safetensors", ".json"):
            continue
        pytest.fail(f"{path.name} is neither JSON nor safetensors")
    (tmp_path / "training.safetensors").unlink()
    (tmp_path / "training.pt").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(LoopscopeError, match="a pickle, which is not read"):
        run(recipes["ouro"], tmp_path, 2)
    assert not (tmp_path / "sprung").exists()


def _truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def _as_pickle(path):
    path.write_bytes(pickle.dumps({"a": 1}))


def _without(name):
    def change(path):
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        del tensors[name]
        save_file(tensors, path, metadata)

    return change


def _misshapen(path):
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors["/model/lm_head.weight"] = tensors["/model/lm_head.weight"][:-1].clone()
    save_file(tensors, path, metadata)


def _with_values(text):
    return lambda path: save_file(load_file(path), path, {"values": text})


@pytest.mark.parametrize(
    "damage",
    [
        _truncated,
        _as_pickle,
        _without("/model/lm_head.weight"),
        _misshapen,
        _with_values("{"),
        _with_values("7"),
        _with_values('{"pairs": 3}'),
        _with_values('{"pairs": [["identity", {"pairs": []}]]}'),
        _with_values("[" * 5000),
        lambda path: path.write_bytes(b""),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_damaged_state_is_one_line(run, recipes, tmp_path, damage):
    run(recipes["ouro"], tmp_path, 1)
    damage(tmp_path / "training.safetensors")
    with pytest.raises(LoopscopeError, match="delete it to train from nothing") as caught:
        run(recipes["ouro"], tmp_path, 2)
    assert "\n" not in str(caught.value)


def test_other_model_in_the_folder_is_refused(run, recipes, tmp_path):
    run(recipes["ouro"], tmp_path, 2)
    with pytest.raises(LoopscopeError, match="belongs to a training with name 'tiny-ouro'"):
        run(recipes["huginn"], tmp_path, 2)


@pytest.mark.parametrize("family", ["ouro", "huginn"])
def test_exported_folder_loads_like_an_official_checkpoint(run, recipes, tmp_path, family):
    trainer, _ = run(recipes[family], tmp_path, 3)
    loaded = load_model(str(tmp_path), dtype="float32")
    assert loaded.family == family
    assert loaded.trained_depth == trainer.model.trained_depth
    for name, weight in trainer.model.state_dict().items():
        assert torch.equal(weight.bfloat16().float(), loaded.state_dict()[name]), name
    stored = load_file(tmp_path / "model.safetensors")
    assert all(tensor.dtype == torch.bfloat16 for tensor in stored.values())
    assert set(stored) == set(trainer.model.state_dict()) - set(trainer.model.tied_tensors())
    assert load_tokenizer(str(tmp_path)).encode("Answer: 23") == trainer.tokenizer.encode("Answer: 23").ids


@pytest.mark.parametrize("family", ["ouro", "huginn"])
def test_compiled_blocks_give_the_same_states(recipes, family):
    """The compiled function with eager as its compiler: the rewiring, not the code generator, is under test."""
    recipe = recipes[family]
    plain, wired = new_model(recipe, 0), new_model(recipe, 0)
    compile_blocks(wired, backend="eager")
    assert list(plain.state_dict()) == list(wired.state_dict())
    batch = Batch.from_rows([[5, 6, 7, 8], [9, 10]])
    torch.testing.assert_close(wired.states(batch, [3])[3], plain.states(batch, [3])[3])
    # A readout in float64, as the monitor asks for it, is that of a float64 copy of its blocks; nothing is compiled.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        walk = Walk.of(wired, batch).to(3)
        expected = Walk.of(plain, batch).changed(walk.state).read(dtype=torch.float64)
        torch.testing.assert_close(walk.read(dtype=torch.float64), expected, rtol=1e-12, atol=1e-12)


def test_accuracy_of_an_untrained_model_is_nothing(recipes, tokenizer):
    found = greedy_accuracy(new_model(recipes["ouro"], 0), tokenizer, problems=5, direct=True)
    assert found.asked == {2: 1, 3: 1, 4: 1, 5: 1, 6: 1}
    assert found.share() == 0.0


def test_accuracy_counts_by_operations():
    found = Accuracy()
    for operations, is_right in ((2, True), (2, False), (4, True), (6, False)):
        found.add(operations, is_right)
    assert found.share(most=4) == pytest.approx(2 / 3)
    assert str(found) == "2 ops 1/2, 4 ops 1/1, 6 ops 0/1; up to four 66.7%, all 50.0%"


def test_rate_rises_with_the_steps_and_falls_with_the_progress():
    assert rate_factor(0, 0.0, 10, 0.5) == pytest.approx(0.1)
    assert rate_factor(9, 0.5, 10, 0.5) == 1.0
    assert rate_factor(50, 0.75, 10, 0.5) == pytest.approx(0.5)
    assert rate_factor(50, 1.0, 10, 0.5) == 0.0


def test_embedded_models_fit_into_five_megabytes():
    for recipe in RECIPES.values():
        model = new_model(recipe, 0)
        weights = {name: p.numel() for name, p in model.named_parameters() if name not in model.tied_tensors()}
        assert 2 * sum(weights.values()) < 4_900_000


def test_unknown_model_is_named():
    with pytest.raises(LoopscopeError, match="unknown embedded model 'toy-llama': choose one of toy-ouro, toy-huginn"):
        get_recipe("toy-llama")


def test_recipes_ask_what_the_configuration_says():
    huginn = RECIPES["toy-huginn"]
    assert huginn.backprop_steps == huginn.config["mean_backprop_depth"]
    assert len(huginn.depth_weights) == huginn.config["mean_recurrence"]
    assert len(RECIPES["toy-ouro"].depth_weights) == RECIPES["toy-ouro"].config["total_ut_steps"]
    assert dataclasses.replace(huginn).mixture.rows(128) == 256


def test_no_gpu_is_one_line(recipes, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(LoopscopeError, match="this machine has 0 CUDA devices: choose cpu or auto"):
        train(recipes["ouro"], tmp_path, Budget(steps=1), device="cuda")
