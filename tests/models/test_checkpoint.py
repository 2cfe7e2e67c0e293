"""A checkpoint folder is opened whole or refused in one line."""

from __future__ import annotations

import json

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file

from loopscope import load_model
from loopscope.errors import LoopscopeError
from loopscope.models.checkpoint import CONFIG, INDEX, WEIGHTS, open_checkpoint, read_header


def complaint(path):
    with pytest.raises(LoopscopeError) as caught:
        read_header(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_what_a_file_holds(tmp_path):
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.randn(5).bfloat16(),
        "scalar": torch.tensor(2.0),
        "ids": torch.arange(6),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    entries = read_header(tmp_path / "m.safetensors")
    assert {name: (entry.dtype, entry.shape) for name, entry in entries.items()} == {
        "a": ("F32", (3, 4)), "b": ("BF16", (5,)), "scalar": ("F32", ()), "ids": ("I64", (6,)),
    }  # fmt: skip


@pytest.mark.parametrize("kept", [0, 3, 8, 20, -5, -1])
def test_truncated_file(tmp_path, kept):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.randn(3, 4)}, path)
    path.write_bytes(path.read_bytes()[:kept])
    assert "cannot be read as safetensors" in complaint(path)


def test_git_lfs_pointer_is_recognised(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n")
    assert "git lfs pull" in complaint(path)


TENSORS = {"a.weight": torch.ones(2, 3), "b.weight": torch.zeros(4), "c.weight": torch.full((5,), 2.0)}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def single(tmp_path):
    folder = tmp_path / "single"
    folder.mkdir()
    (folder / CONFIG).write_text('{"model_type": "any"}')
    save_file(TENSORS, folder / WEIGHTS)
    return folder


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "sharded"
    folder.mkdir()
    (folder / CONFIG).write_text("{}")
    save_file({name: TENSORS[name] for name in ("a.weight", "b.weight")}, folder / SHARDS[0])
    save_file({"c.weight": TENSORS["c.weight"]}, folder / SHARDS[1])
    write_index(folder, {"a.weight": SHARDS[0], "b.weight": SHARDS[0], "c.weight": SHARDS[1]})
    return folder


def write_index(folder, weight_map):
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def folder_complaint(folder):
    with pytest.raises(LoopscopeError) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_single_file(single):
    checkpoint = open_checkpoint(single)
    assert {name: entry.shape for name, entry in checkpoint.tensors.items()} == {
        name: tuple(tensor.shape) for name, tensor in TENSORS.items()
    }
    assert checkpoint.config == {"model_type": "any"}
    assert [path.name for path in checkpoint.files] == [CONFIG, WEIGHTS]


def test_shards_hold_the_same_tensors(single, sharded):
    one, many = open_checkpoint(single), open_checkpoint(sharded)
    assert {n: (e.dtype, e.shape) for n, e in one.tensors.items()} == {
        n: (e.dtype, e.shape) for n, e in many.tensors.items()
    }
    assert [path.name for path in many.files] == [CONFIG, *SHARDS]


@pytest.mark.parametrize("text", [b"{", b"", b"[" * 200_000])
def test_config_is_no_json(single, text):
    (single / CONFIG).write_bytes(text)
    assert "not valid JSON" in folder_complaint(single)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"])
def test_pickle_only_folder_is_refused_unread(single, name):
    (single / WEIGHTS).unlink()
    (single / name).write_bytes(b"\x80\x04cos\nsystem\n")
    message = folder_complaint(single)
    assert f"weights = torch.load({name!r}, weights_only=True); safetensors.torch.save_file(" in message
    assert "never read" in message


def test_the_two_lines_for_a_pickled_checkpoint_are_enough(single, monkeypatch):
    weights = load_file(single / WEIGHTS)
    (single / WEIGHTS).unlink()
    torch.save(weights, single / "pytorch_model.bin")
    lines = folder_complaint(single).partition("in that folder: ")[2]
    monkeypatch.chdir(single)
    exec(lines, {"torch": torch, "safetensors": safetensors})
    saved = load_file(single / WEIGHTS)
    assert saved.keys() == weights.keys()
    assert all(torch.equal(saved[name], weights[name]) for name in saved)


def test_shard_listed_but_absent(sharded):
    (sharded / SHARDS[1]).unlink()
    assert f"{SHARDS[1]} does not exist" in folder_complaint(sharded)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "..\\x.safetensors",
        "C:x.safetensors",
        "x.bin",
        "",
        "a\0.safetensors",
        7,
    ],
)
def test_shard_name_that_leaves_its_folder(sharded, name):
    save_file(TENSORS, sharded.parent / "x.safetensors")
    write_index(sharded, dict.fromkeys(TENSORS, name))
    message = folder_complaint(sharded)
    assert repr(name) in message
    assert "refused" in message


@pytest.mark.parametrize("shape", [(37, 11), (), (0,), (3, 0, 2)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_read_as_it_was_saved(tmp_path, dtype, shape):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    save_file({"other": torch.randn(5), "x": tensor}, tmp_path / "m.safetensors")
    assert torch.equal(read_header(tmp_path / "m.safetensors")["x"].read(), tensor)


def test_blocks_of_rows(tmp_path):
    tensor = torch.arange(24.0).reshape(6, 4)
    save_file({"x": tensor}, tmp_path / "m.safetensors")
    entry = read_header(tmp_path / "m.safetensors")["x"]
    assert [block.name for block in entry.row_blocks(["q", "k", "v"])] == ["q", "k", "v"]
    assert torch.equal(torch.cat([block.read() for block in entry.row_blocks(["q", "k", "v"])]), tensor)
    with pytest.raises(LoopscopeError, match="not in 4 blocks"):
        entry.row_blocks(["a", "b", "c", "d"])


def test_the_file_may_change_afterwards(tiny):
    folder = tiny("ouro")
    model = load_model(folder)
    before = model.lm_head.weight.clone()
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(10)
    assert torch.equal(model.lm_head.weight, before)


@pytest.mark.parametrize("fields", [{"vocab_size": 2**31 - 1, "hidden_size": 2**20}, {"num_hidden_layers": 10**8}])
def test_random_weights_of_absurd_sizes(tiny, fields):
    folder = tiny("ouro")
    (folder / CONFIG).write_text(json.dumps(json.loads((folder / CONFIG).read_text()) | fields))
    with pytest.raises(LoopscopeError):
        load_model(folder, model_args={"random_weights": True})
