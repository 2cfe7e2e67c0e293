"""Every way to name a model, and the nearest names when nothing answers."""

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.models import registry
from loopscope.models.families import build_model, detect_family, families
from loopscope.models.registry import PUBLISHED, find_published, parse_name

# Parameter counts as the model cards and checkpoints state them, independent of our own table.
COUNTS = {
    "ouro-1.4b": 1_434_652_673,
    "ouro-2.6b": 2_667_974_657,
    "ouro-1.4b-thinking": 1_434_652_673,
    "ouro-2.6b-thinking": 2_667_974_657,
    "huginn-0125": 3_564_976_800,
    "recurrent-llama-3.2-train-recurrence-4": 1_385_228_288,
    "recurrent-tinyllama-3t-train-recurrence-8": 844_171_264,
    "recurrent-olmo-2-0425-train-recurrence-32": 1_359_071_232,
    "nanbeige4.2-3b": 4_169_800_704,
    "hrm-text-1b": 1_182_795_264,
    "qwen3_1.7b_loopus": 2_031_739_904 + 534_529,
    "parcae-140m": 144_323_136,
    "parcae-370m": 388_003_328,
    "parcae-770m": 776_655_680,
    "parcae-1.3b": 1_338_591_744,
    "loopformer-3block-8iterations": 278_169_600,
}
TENSORS = {"ouro-1.4b": 269, "ouro-2.6b": 533, "huginn-0125": 76}


@pytest.mark.parametrize("entry", [entry for entry in PUBLISHED if entry.config], ids=lambda entry: entry.name)
def test_table_agrees_with_the_model_it_describes(entry):
    model = build_model(entry.family, entry.config)
    assert sum(parameter.numel() for parameter in model.parameters()) == entry.parameters
    assert all(parameter.is_meta for parameter in model.parameters())
    assert (model.family, model.trained_depth) == (entry.family, entry.trained_depth)
    assert model.boundary.startswith(families()[entry.family].boundary)
    assert getattr(torch, entry.stored_dtype).is_floating_point


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_published_parameter_counts(name, count):
    entry = find_published(name)
    model = build_model(entry.family, entry.config)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


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


def test_embedded_model_by_folder(tmp_path, monkeypatch):
    (tmp_path / "toy-x").mkdir()
    (tmp_path / "toy-x" / "config.json").touch()
    (tmp_path / "half").mkdir()
    monkeypatch.setattr(registry, "EMBEDDED", tmp_path)
    assert list(registry.embedded_models()) == ["toy-x"]
    assert parse_name("toy-x").kind == "embedded"


@pytest.mark.parametrize("name", ["loop:org/name:10-20", "toy-ouro:inside=3", "mine.py:build:a=1"])
def test_options_in_a_name_are_refused_with_the_remedy(name):
    with pytest.raises(LoopscopeError, match="model_args="):
        parse_name(name)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("ouro-1.4", "ouro-1.4b"),
        ("oro-2.6b", "ouro-2.6b"),
        ("hugin-0125", "huginn-0125"),
        ("OURO-1.4B-THINKIN", "ouro-1.4b-thinking"),
        ("recurrent-lama-3.2-train-recurrence-8", "recurrent-llama-3.2-train-recurrence-8"),
    ],
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
    [
        "x" * 5000,
        "x" * 300,
        "./" + "x" * 300,
        "~nobody-of-this-name/x",
        "a\0b",
        "./a\nb",
        "a\nb",
        "loop:" * 500 + "toy-ouro:1-2",
        "\udcff",
        "ouro-1.4b@",
    ],
)
def test_specification_of_nothing_is_one_short_line(spec):
    with pytest.raises(LoopscopeError) as caught:
        parse_name(spec)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
