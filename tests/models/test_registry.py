"""Every way to name a model, and the nearest names when nothing answers."""

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.models import registry
from loopscope.models.families import build_model, detect_family, families
from loopscope.models.load import load_model
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


@pytest.mark.parametrize("entry", [entry for entry in PUBLISHED if not entry.config], ids=lambda entry: entry.name)
def test_what_is_not_known_is_not_made_up(entry):
    assert (entry.parameters, entry.trained_depth) == (None, None)
    assert entry.note
    with pytest.raises(LoopscopeError, match=f"the sizes of {entry.name} are not known here"):
        load_model(entry.name, model_args={"random_weights": True})


@pytest.mark.parametrize(("name", "count"), TENSORS.items())
def test_published_tensor_counts(name, count):
    entry = find_published(name)
    assert len(build_model(entry.family, entry.config).state_dict()) == count


def test_known_commits_are_full_hashes():
    pinned = {entry.name: entry.revision for entry in PUBLISHED if entry.revision}
    assert {name: commit[:8] for name, commit in pinned.items()} == {
        "ouro-1.4b": "574fa66c",
        "ouro-2.6b": "1ed04250",
        "ouro-1.4b-thinking": "3aaa2224",
        "ouro-2.6b-thinking": "f1edd81e",
        "huginn-0125": "bb6621b6",
        "nanbeige4.2-3b": "5d54321e",
    }
    assert {len(commit) for commit in pinned.values()} == {40}


def test_names_are_unique():
    names = registry.known_names()
    assert len({name.lower() for name in names}) == len(names)


@pytest.mark.parametrize("spec", ["ouro-1.4b", "Ouro-1.4B", "ByteDance/Ouro-1.4B", "bytedance/ouro-1.4b"])
def test_short_and_hub_names_mean_the_pinned_checkpoint(spec):
    source = parse_name(spec)
    assert (source.kind, source.location, source.name) == ("hub", "ByteDance/Ouro-1.4B", "ouro-1.4b")
    assert source.revision == "574fa66cb8bf5abdc979642d01cf2b79b16bfab1"


@pytest.mark.parametrize("name", ["ouro-1.4b@main", "ByteDance/Ouro-1.4B@main"])
def test_a_revision_wins_over_the_pinned_one(name):
    assert parse_name(name).revision == "main"


def test_unpinned_hub_name_takes_the_newest():
    source = parse_name("somebody/some.model-1")
    assert (source.kind, source.location, source.revision) == ("hub", "somebody/some.model-1", None)


def test_retrofits_are_known_by_short_name():
    for size in ("llama-3.2", "tinyllama-3t", "olmo-2-0425"):
        for depth in (4, 8, 16, 32):
            source = parse_name(f"recurrent-{size}-train-recurrence-{depth}")
            assert source.published.trained_depth == depth
            assert source.location.startswith("smcleish/Recurrent-")


def test_folder_by_path(tmp_path, monkeypatch):
    (tmp_path / "runs" / "step-9").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for spec in ("runs/step-9", "./runs/step-9", str(tmp_path / "runs/step-9"), "runs/step-9/"):
        source = parse_name(spec)
        assert (source.kind, source.location, source.name) == ("folder", str(tmp_path / "runs/step-9"), "step-9")


def test_bare_name_of_a_folder_here(tmp_path, monkeypatch):
    (tmp_path / "checkpoint").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_name("checkpoint").kind == "folder"


def test_known_name_wins_over_a_folder_of_that_name_unless_it_is_written_as_a_path(tmp_path, monkeypatch):
    (tmp_path / "ouro-1.4b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_name("ouro-1.4b").kind == "hub"
    assert parse_name("./ouro-1.4b").kind == "folder"


def test_local_copy_of_a_hub_name_wins_over_the_hub(tmp_path, monkeypatch):
    (tmp_path / "ByteDance/Ouro-1.4B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_name("ByteDance/Ouro-1.4B").kind == "folder"


def test_folder_with_an_at_sign(tmp_path, monkeypatch):
    (tmp_path / "a@b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_name("./a@b").location == str(tmp_path / "a@b")


def test_folder_has_no_revision(tmp_path):
    with pytest.raises(LoopscopeError, match="no revisions"):
        parse_name(f"{tmp_path}@main")


def test_file_instead_of_folder(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(LoopscopeError, match="give the folder"):
        parse_name(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("spec", ["./nowhere", "/no/such/folder", "~/no-such-folder-here", "a/b/c"])
def test_folder_that_does_not_exist(spec):
    with pytest.raises(LoopscopeError, match="does not exist"):
        parse_name(spec)


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


@pytest.mark.parametrize("loop", ["", "10", "a-b", "1-2-3", 5, "9" * 5000 + "-1"])
def test_malformed_span(loop):
    with pytest.raises(LoopscopeError, match="FIRST-LAST"):
        load_model("toy-ouro", model_args={"loop": loop})


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


@pytest.mark.parametrize("spec", ["", "zzzzzzzz", "@", "name@rev", "\0"])
def test_name_like_nothing_known(spec):
    with pytest.raises(LoopscopeError, match="loopscope models"):
        parse_name(spec)


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


def test_retrofit_without_tensors_cannot_be_told_apart():
    with pytest.raises(LoopscopeError, match="does not say whether the model is huginn or"):
        detect_family({"model_type": "huginn_raven", "qk_bias": False}, None)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "gpt2"}, "'gpt2'"),
        ({"architectures": ["OtherLM"]}, "'OtherLM'"),
        ({"architectures": ["OtherLM"], "model_type": "other"}, "'OtherLM'"),
        ({}, r"\(none named\)"),
    ],
)
def test_unknown_architecture_is_named(config, named):
    with pytest.raises(LoopscopeError, match=f"unknown architecture {named}:"):
        detect_family(config, None)


@pytest.mark.parametrize("config", [{}, {"architectures": []}, {"architectures": "Ouro"}, {"model_type": 7}])
def test_configuration_that_names_nothing(config):
    with pytest.raises(LoopscopeError, match="unknown architecture"):
        detect_family(config, None)


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


@pytest.mark.parametrize("revision", ["", "x" * 5000, "a\nb", "../..", "\0"])
def test_revision_of_nothing_is_one_short_line(revision):
    with pytest.raises(LoopscopeError) as caught:
        load_model(f"ByteDance/Ouro-1.4B@{revision}", offline=True)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
