"""Every way to name a model, and the nearest names when nothing answers."""

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.models.families import build_model, detect_family, families
from loopscope.models.registry import PUBLISHED, parse_name


@pytest.mark.parametrize("entry", [entry for entry in PUBLISHED if entry.config], ids=lambda entry: entry.name)
def test_table_agrees_with_the_model_it_describes(entry):
    model = build_model(entry.family, entry.config)
    assert sum(parameter.numel() for parameter in model.parameters()) == entry.parameters
    assert all(parameter.is_meta for parameter in model.parameters())
    assert (model.family, model.trained_depth) == (entry.family, entry.trained_depth)
    assert model.boundary.startswith(families()[entry.family].boundary)
    assert getattr(torch, entry.stored_dtype).is_floating_point


@pytest.mark.parametrize("spec", ["ouro-1.4b", "Ouro-1.4B", "ByteDance/Ouro-1.4B", "bytedance/ouro-1.4b"])
def test_short_and_hub_names_mean_the_pinned_checkpoint(spec):
    source = parse_name(spec)
    assert (source.kind, source.location, source.name) == ("hub", "ByteDance/Ouro-1.4B", "ouro-1.4b")
    assert source.revision == "574fa66cb8bf5abdc979642d01cf2b79b16bfab1"


@pytest.mark.parametrize("name", ["ouro-1.4b@main", "ByteDance/Ouro-1.4B@main"])
def test_a_revision_wins_over_the_pinned_one(name):
    assert parse_name(name).revision == "main"


def test_folder_by_path(tmp_path, monkeypatch):
    (tmp_path / "runs" / "step-9").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for spec in ("runs/step-9", "./runs/step-9", str(tmp_path / "runs/step-9"), "runs/step-9/"):
        source = parse_name(spec)
        assert (source.kind, source.location, source.name) == ("folder", str(tmp_path / "runs/step-9"), "step-9")


def test_known_name_wins_over_a_folder_of_that_name_unless_it_is_written_as_a_path(tmp_path, monkeypatch):
    (tmp_path / "ouro-1.4b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_name("ouro-1.4b").kind == "hub"
    assert parse_name("./ouro-1.4b").kind == "folder"


def test_local_copy_of_a_hub_name_wins_over_the_hub(tmp_path, monkeypatch):
    (tmp_path / "ByteDance/Ouro-1.4B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_name("ByteDance/Ouro-1.4B").kind == "folder"


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("ouro-1.4", "ouro-1.4b"), ("OURO-1.4B-THINKIN", "ouro-1.4b-thinking")],
)
def test_unknown_name_suggests_the_nearest(typo, meant):
    with pytest.raises(LoopscopeError) as caught:
        parse_name(typo)
    assert f"did you mean {meant}" in str(caught.value)
    assert "\n" not in str(caught.value)


# --- families from configurations ---


def test_family_needs_the_tensors_only_where_the_configuration_is_shared():
    raven = {"model_type": "huginn_raven", "architectures": ["RavenForCausalLM"]}
    assert detect_family({"model_type": "ouro"}, None) == "ouro"
    assert detect_family({"architectures": ["OuroForCausalLM"]}, None) == "ouro"
    assert detect_family(raven | {"qk_bias": True}, None) == "huginn"
    block = "transformer.core_block.0."
    assert detect_family(raven, [block + "norm_1.weight", block + "norm_3.weight"]) == "huginn"
    assert detect_family(raven, [block + "norm_1.weight"]) == "retrofit-llama"
    assert detect_family(raven, [block + "norm_1.weight", block + "attn.q_norm.weight"]) == "retrofit-olmo"


@pytest.mark.parametrize(
    "spec",
    ["x" * 5000, "./" + "x" * 300, "~nobody-of-this-name/x", "a\0b", "./a\nb", "\udcff", "ouro-1.4b@", "toy-ouro@main"],
)
def test_specification_of_nothing_is_one_short_line(spec):
    with pytest.raises(LoopscopeError) as caught:
        parse_name(spec)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
