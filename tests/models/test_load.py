"""`load_model`: every family from a folder, the hub and the package; every bad checkpoint in one clear line."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import loopscope as ls
from loopscope import Batch, load_model, load_tokenizer
from loopscope.errors import LoopscopeError
from loopscope.models.load import DTYPES, card_of, find_device, find_dtype

FAMILIES = ["ouro", "huginn", "retrofit-llama", "retrofit-olmo"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def complaint(spec, **keywords):
    with pytest.raises(LoopscopeError) as caught:
        load_model(str(spec), **keywords)
    message = str(caught.value)
    assert "\n" not in message
    return message


def edit_config(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


# --- what loads ---


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_every_parameter_arrives(tiny, family, shards):
    folder = tiny(family, shards=shards)
    model = load_model(str(folder))
    stored = {}
    for path in folder.glob("*.safetensors"):
        stored |= load_file(path)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, stored.pop(name)), name
    assert stored == {}
    assert model.family == family
    assert not model.training


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtype_is_converted_on_the_way(tiny, dtype):
    folder = tiny("ouro")
    model = load_model(str(folder), dtype=dtype)
    stored = load_file(folder / "model.safetensors")
    assert model.dtype == getattr(torch, dtype)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, stored[name].to(model.dtype))


@pytest.mark.parametrize("name", ["huginn-0125", "tomg-group-umd/huginn-0125"])
def test_published_checkpoint_runs_in_bfloat16_unless_told_otherwise(tiny, local_hub, name):
    folder = tiny("huginn")
    publish(local_hub, "tomg-group-umd/huginn-0125", folder)
    stored = load_file(folder / "model.safetensors")
    for given, dtype in ((None, torch.bfloat16), ("float32", torch.float32)):
        model = load_model(f"{name}@{COMMIT}", dtype=given)
        assert model.dtype == dtype
        for key, parameter in model.named_parameters():
            assert torch.equal(parameter, stored[key].to(dtype)), key


@pytest.mark.parametrize(
    ("family", "repo", "short", "choices"),
    [
        ("nanbeige", "Nanbeige/Nanbeige4.2-3B", "nanbeige4.2-3b", ""),
        ("hrm_text", "sapientinc/HRM-Text-1B", "hrm-text-1b", "attention=causal"),
        ("loopus", "Thrillcrazyer/Qwen3_1.7B_LoopUS", "qwen3_1.7b_loopus", ""),
        ("loopformer", "armenjeddi/LoopFormer-3block-8iterations", "loopformer-3block-8iterations", "budget=4"),
        ("parcae", "SandyResearch/parcae-140m", "parcae-140m", "initial_state=official"),
    ],
)
def test_families_by_hub_name_and_short_name(golden_folder, local_hub, family, repo, short, choices):
    publish(local_hub, repo, golden_folder(family))
    for name in (f"{repo}@{COMMIT}", f"{short}@main"):
        model = load_model(name, model_args=choices)
        card = card_of(model)
        assert (card.kind, card.revision, card.family) == ("hub", COMMIT, family.replace("_", "-"))
        assert model.dtype == torch.bfloat16
        assert model.name == short + (f":{choices}" if choices else "")


@pytest.mark.parametrize("stored", [True, False])
def test_tied_head_may_be_stored_or_left_out(tiny, stored):
    folder = tiny("huginn")
    if stored:
        edit_tensors(folder, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"].clone()}))
    model = load_model(str(folder))
    assert model.lm_head.weight is model.get_parameter("transformer.wte.weight")


def test_tied_head_with_other_values_is_pointed_out(tiny):
    folder = tiny("huginn")
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"] + 1}))
    with pytest.warns(UserWarning, match="ties lm_head.weight"):
        model = load_model(str(folder))
    assert torch.equal(model.lm_head.weight, load_file(folder / "model.safetensors")["transformer.wte.weight"])


# --- cards ---


def test_card_of_a_folder(tiny):
    folder = tiny("ouro", shards=2)
    card = card_of(load_model(str(folder), dtype="bfloat16"))
    assert (card.kind, card.location, card.name) == ("folder", str(folder), "checkpoint")
    assert (card.family, card.dtype) == ("ouro", "bfloat16")
    assert (card.random, card.revision, card.trained_depth) == (False, None, 3)
    assert [path.name for path in card.files] == [
        "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    ]  # fmt: skip
    assert [len(digest) for digest in card.sha256.values()] == [64, 64, 64]


# --- the hub and the package ---


def publish(hub, repo, folder):
    hub.files[repo] = {path.name: path.read_bytes() for path in folder.iterdir()}


def test_hub_model_with_revision_and_offline(tiny, local_hub):
    publish(local_hub, "maker/model", tiny("ouro"))
    load_model("maker/model@v1/x")
    local_hub.requests.clear()
    assert card_of(load_model("maker/model@v1/x", offline=True)).revision == COMMIT
    assert local_hub.requests == []


def test_a_revision_of_a_hub_model_is_measured(tiny, local_hub, tmp_path):
    publish(local_hub, "maker/model", tiny("ouro"))
    rows = ls.Task.from_rows([{"prompt_ids": [1, 2, 3], "solution_ids": [4, 5]}])
    found = ls.measure("maker/model@v1/x", rows, output=tmp_path / "run", transitions=1, device="cpu")
    assert (found.manifest.model.spec, found.manifest.model.revision) == ("maker/model@v1/x", COMMIT)


@pytest.mark.parametrize("args", ["", "loop=0-9"])
def test_hub_model_that_cannot_run_is_refused_before_its_weights_travel(tiny, local_hub, args):
    publish(local_hub, "maker/llama", tiny("loop"))
    message = complaint("maker/llama", model_args=args)
    assert "maker/llama" in message
    assert not any("safetensors" in request for request in local_hub.requests if request.startswith("GET"))


def test_hub_code_and_pickle_are_never_fetched(tiny, local_hub):
    publish(local_hub, "maker/model", tiny("ouro"))
    local_hub.files["maker/model"] |= {"modeling_ouro.py": b"raise SystemExit", "pytorch_model.bin": b"\x80"}
    load_model("maker/model")
    assert not any(request.endswith((".py", ".bin")) for request in local_hub.requests)


@pytest.mark.parametrize("name", ["toy-ouro", "toy-huginn"])
def test_models_inside_the_package_load_with_their_tokenizers(name):
    model = load_model(name)
    tokenizer = load_tokenizer(name, vocabulary_size=model.vocabulary_size)
    ids = tokenizer.encode("12 + 34 =")
    assert tokenizer.decode(ids) == "12 + 34 ="
    state = model.states(Batch.from_rows([ids]), [model.trained_depth])[model.trained_depth]
    assert model.readout(state).isfinite().all()
    assert card_of(model).kind == "embedded"


# --- bad checkpoints ---


def test_missing_tensor_is_named(tiny):
    folder = tiny("ouro")
    edit_tensors(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    message = complaint(folder)
    assert "lacks the tensor 'model.layers.1.mlp.up_proj.weight'" in message
    assert str(folder) in message


def test_extra_tensor_is_named(tiny):
    folder = tiny("ouro")
    edit_tensors(folder, lambda tensors: tensors.update({"model.layers.0.router.weight": torch.zeros(2)}))
    assert "holds the tensor 'model.layers.0.router.weight'" in complaint(folder)


def test_wrong_shape_shows_both(tiny):
    folder = tiny("ouro")
    edit_tensors(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(17)}))
    message = complaint(folder)
    assert "'model.norm.weight'" in message
    assert "[17]" in message
    assert "[16]" in message


def test_eight_bit_weights_are_refused_by_name(tiny):
    folder = tiny("ouro")
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": t["lm_head.weight"].to(torch.float8_e4m3fn)}))
    message = complaint(folder)
    assert "'lm_head.weight' as F8_E4M3" in message


def test_more_memory_than_there_is(tiny):
    folder = tiny("ouro")
    edit_config(folder, vocab_size=2**31 - 1, hidden_size=2**20, head_dim=4)
    message = complaint(folder, model_args={"random_weights": True})
    assert "GB in float32" in message
    assert "smaller dtype" in message


# --- devices and dtypes ---


@pytest.fixture
def machine(monkeypatch):
    def pretend(cuda=0, mps=False):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


@pytest.mark.parametrize(
    ("cuda", "mps", "found"), [(2, False, "cuda"), (1, True, "cuda"), (0, True, "mps"), (0, False, "cpu")]
)
def test_auto_takes_the_best_there_is(machine, cuda, mps, found):
    machine(cuda, mps)
    assert find_device("auto").type == found


@pytest.mark.parametrize(("count", "name"), [(0, "cuda"), (1, "cuda:1")])
def test_cuda_device_beyond_the_last(machine, count, name):
    machine(count)
    with pytest.raises(LoopscopeError, match=f"this machine has {count}"):
        find_device(name)


def test_mps_only_where_it_is(machine):
    machine(mps=True)
    assert find_device("mps").type == "mps"
    machine(mps=False)
    with pytest.raises(LoopscopeError, match="mps"):
        find_device("mps")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "meta", "mkldnn", "cuda:-1", "cuda:" + "9" * 5000])
def test_name_that_is_no_device(name):
    with pytest.raises(LoopscopeError, match="there is no device") as caught:
        find_device(name)
    assert len(str(caught.value)) < 300


def test_every_dtype_by_name_and_object():
    for name, dtype in DTYPES.items():
        assert find_dtype(name) is find_dtype(dtype) is find_dtype(name.upper()) is dtype
