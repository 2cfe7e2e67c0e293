"""A checkpoint folder is opened whole or refused in one line that names what is wrong."""

import json

import pytest
import torch
from safetensors.torch import save_file

from loopscope.errors import LoopscopeError
from loopscope.models.checkpoint.config import CONFIG
from loopscope.models.checkpoint.safetensors import INDEX, WEIGHTS, open_checkpoint

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


def complaint(folder):
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


def test_index_that_names_the_single_file(single):
    write_index(single, dict.fromkeys(TENSORS, WEIGHTS))
    assert set(open_checkpoint(single).tensors) == set(TENSORS)


def test_folder_does_not_exist(tmp_path):
    assert "does not exist" in complaint(tmp_path / "nowhere")


def test_file_instead_of_folder(single):
    assert "give the folder" in complaint(single / WEIGHTS)


def test_config_missing(single):
    (single / CONFIG).unlink()
    assert f"no {CONFIG}" in complaint(single)


@pytest.mark.parametrize("text", [b"{", b"", b"\xff\xfe", b"[" * 200_000, b"{'a': 1}"])
def test_config_is_no_json(single, text):
    (single / CONFIG).write_bytes(text)
    assert "not valid JSON" in complaint(single)


def test_config_is_no_object(single):
    (single / CONFIG).write_text("[1]")
    assert "no JSON object" in complaint(single)


def test_weights_missing(single):
    (single / WEIGHTS).unlink()
    assert "weights are missing" in complaint(single)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"])
def test_pickle_only_folder_is_refused_unread(single, name):
    (single / WEIGHTS).unlink()
    (single / name).write_bytes(b"\x80\x04cos\nsystem\n")
    message = complaint(single)
    assert name in message
    assert "never read" in message


def test_weights_under_another_name(single):
    (single / WEIGHTS).rename(single / "weights.safetensors")
    assert "weights.safetensors" in complaint(single)


def test_shards_without_index(sharded):
    (sharded / INDEX).unlink()
    assert INDEX in complaint(sharded)


def test_single_file_beside_shards(sharded):
    save_file(TENSORS, sharded / WEIGHTS)
    assert "both" in complaint(sharded)


def test_shard_listed_but_absent(sharded):
    (sharded / SHARDS[1]).unlink()
    assert f"lists {SHARDS[1]}, which is missing" in complaint(sharded)


def test_truncated_shard_is_named(sharded):
    path = sharded / SHARDS[1]
    path.write_bytes(path.read_bytes()[:-3])
    message = complaint(sharded)
    assert SHARDS[1] in message
    assert "truncated" in message


def test_tensor_listed_in_the_wrong_shard(sharded):
    write_index(sharded, {"a.weight": SHARDS[0], "b.weight": SHARDS[1], "c.weight": SHARDS[1]})
    assert f"'b.weight' in {SHARDS[1]}, but it is in {SHARDS[0]}" in complaint(sharded)


def test_tensor_listed_but_stored_nowhere(sharded):
    write_index(sharded, dict.fromkeys(["a.weight", "b.weight", "d.weight"], SHARDS[0]) | {"c.weight": SHARDS[1]})
    assert "'d.weight'" in complaint(sharded)


def test_tensor_stored_but_not_listed(sharded):
    write_index(sharded, {"a.weight": SHARDS[0], "c.weight": SHARDS[1]})
    assert "'b.weight'" in complaint(sharded)


def test_tensor_in_two_shards(sharded):
    save_file({name: TENSORS[name] for name in ("a.weight", "c.weight")}, sharded / SHARDS[1])
    message = complaint(sharded)
    assert "'a.weight' twice" in message
    assert SHARDS[0] in message
    assert SHARDS[1] in message


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "sub/../../x.safetensors",
        "/etc/x.safetensors",
        "..\\x.safetensors",
        "C:x.safetensors",
        "sub/x.safetensors",
        "x.bin",
        "..",
        "",
        ".hidden.safetensors",
        "a\0.safetensors",
        7,
        None,
    ],
)
def test_shard_name_that_leaves_its_folder(sharded, name):
    save_file(TENSORS, sharded.parent / "x.safetensors")
    write_index(sharded, dict.fromkeys(TENSORS, name))
    message = complaint(sharded)
    assert repr(name) in message
    assert "refused" in message


def test_shard_that_is_a_link_out_of_the_folder(sharded):
    outside = sharded.parent / "outside.safetensors"
    (sharded / SHARDS[1]).rename(outside)
    (sharded / SHARDS[1]).symlink_to(outside)
    assert "leaves its folder" in complaint(sharded)


def test_shard_that_is_a_dangling_link(sharded):
    (sharded / SHARDS[1]).unlink()
    (sharded / SHARDS[1]).symlink_to(sharded / "nothing")
    assert "is missing" in complaint(sharded)


def test_link_within_the_folder_is_fine(sharded):
    (sharded / SHARDS[1]).rename(sharded / "stored.safetensors")
    (sharded / SHARDS[1]).symlink_to("stored.safetensors")
    assert set(open_checkpoint(sharded).tensors) == set(TENSORS)


@pytest.mark.parametrize("store", ["models--o--n/blobs", "blobs/ab"])
def test_hub_cache_layout_with_links_into_its_blobs(sharded, tmp_path, store):
    snapshot = tmp_path / "cache/models--o--n/snapshots/0123"
    blobs = tmp_path / "cache" / store
    snapshot.mkdir(parents=True)
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(sharded.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(blobs / str(number))
    assert set(open_checkpoint(snapshot).tensors) == set(TENSORS)


@pytest.mark.parametrize("content", ['{"weight_map": []}', '{"weight_map": {}}', "{}"])
def test_index_without_a_weight_map(sharded, content):
    (sharded / INDEX).write_text(content)
    assert "weight_map" in complaint(sharded)


def test_index_is_no_json(sharded):
    (sharded / INDEX).write_text("{")
    assert "not valid JSON" in complaint(sharded)


def test_unreadable_file_is_one_line(single, monkeypatch):
    def refuse(self, *arguments, **keywords):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(type(single), "open", refuse)
    assert "cannot be read: Permission denied" in complaint(single)
