"""A checkpoint folder is opened whole or refused; headers are believed only after they agree with the file.

The safetensors library is the independent writer."""

from __future__ import annotations

import json
import struct

import pytest
import safetensors
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from loopscope.errors import LoopscopeError
from loopscope.models.checkpoint.config import CONFIG
from loopscope.models.checkpoint.safetensors import INDEX, WEIGHTS, open_checkpoint, read_header


def write_raw(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def complaint(path):
    with pytest.raises(LoopscopeError) as caught:
        read_header(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_agrees_with_the_safetensors_library(tmp_path):
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.randn(5).bfloat16(),
        "scalar": torch.tensor(2.0),
        "empty": torch.empty(0, 7),
        "ids": torch.arange(6),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    entries = read_header(path)
    with safe_open(path, framework="pt") as reference:
        assert set(entries) == set(reference.keys())
        for name, tensor in tensors.items():
            assert entries[name].shape == tuple(reference.get_slice(name).get_shape())
            assert entries[name].dtype == reference.get_slice(name).get_dtype()
            raw = path.read_bytes()[entries[name].start : entries[name].stop]
            assert raw == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_header_may_be_padded_with_spaces(tmp_path):
    path = write_raw(tmp_path / "m.safetensors", json.dumps({"x": entry()}).encode() + b"   ", b"\0" * 4)
    assert read_header(path)["x"].nbytes == 4


def test_file_of_empty_tensors_has_no_data(tmp_path):
    path = write_raw(tmp_path / "m.safetensors", {"x": entry(shape=(0, 3), offsets=(0, 0))})
    assert read_header(path)["x"].elements == 0


@pytest.mark.parametrize("kept", [0, 3, 8, 20, -5, -1])
def test_truncated_file(tmp_path, kept):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.randn(3, 4)}, path)
    path.write_bytes(path.read_bytes()[:kept])
    assert "is truncated" in complaint(path)


def test_absurd_header_length_is_not_allocated(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    assert f"announces a header of {2**62} bytes" in complaint(path)


def test_trailing_bytes(tmp_path):
    path = write_raw(tmp_path / "m.safetensors", {"x": entry()}, b"\0" * 9)
    assert "5 bytes after its last tensor" in complaint(path)


@pytest.mark.parametrize(
    "header", [b"not json", b"[1, 2]", b"[" * 200_000, b"\xff\xfe{}", b'{"x": ' + b"9" * 5000 + b"}"]
)
def test_header_that_is_no_json_object(tmp_path, header):
    complaint(write_raw(tmp_path / "m.safetensors", header))


@pytest.mark.parametrize(
    "fields",
    [
        7,
        {},
        {"dtype": "F32", "shape": [1]},
        entry(shape=(-1,)),
        entry(shape=("1",)),
        entry(shape=(True,)),
        entry(shape=(2**63,)),
        entry(shape=[1] * 100),
        entry(offsets=(4, 0)),
        entry(offsets=(0, 4, 8)),
        entry(offsets=(-4, 0)),
        {"dtype": 5, "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]},
    ],
)
def test_wrong_description_names_the_tensor(tmp_path, fields):
    assert "'x'" in complaint(write_raw(tmp_path / "m.safetensors", {"x": fields}, b"\0" * 4))


def test_byte_count_that_does_not_fit_the_shape(tmp_path):
    path = write_raw(tmp_path / "m.safetensors", {"x": entry(shape=(2, 3), offsets=(0, 20))}, b"\0" * 20)
    assert "20 bytes where F32 [2, 3] needs 24" in complaint(path)


@pytest.mark.parametrize(("second", "word"), [((0, 4), "overlaps"), ((8, 12), "hole")])
def test_overlap_and_hole(tmp_path, second, word):
    table = {"x": entry(), "y": entry(offsets=second)}
    assert word in complaint(write_raw(tmp_path / "m.safetensors", table, b"\0" * second[1]))


def test_name_listed_twice(tmp_path):
    one = json.dumps(entry())
    text = f'{{"a": {one}, "x": {one}, "x": {one}}}'.encode()
    assert "'x' twice" in complaint(write_raw(tmp_path / "m.safetensors", text, b"\0" * 4))


def test_git_lfs_pointer_is_recognised(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n")
    assert "git lfs pull" in complaint(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 170), value=st.integers(0, 255))
def test_one_changed_byte_is_either_harmless_or_one_clear_line(tmp_path, position, value):
    path = tmp_path / "model.safetensors"
    save_file({"alpha": torch.zeros(2, 3), "beta": torch.zeros(4).bfloat16()}, path)
    raw = bytearray(path.read_bytes())
    raw[min(position, len(raw) - 1)] = value
    path.write_bytes(raw)
    try:
        entries = read_header(path)
    except LoopscopeError as error:
        entries, message = {}, str(error)
    else:
        message = ""
    assert "\n" not in message
    assert all(8 <= entry.start <= entry.stop <= len(raw) for entry in entries.values())


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


def test_index_that_names_the_single_file(single):
    write_index(single, dict.fromkeys(TENSORS, WEIGHTS))
    assert set(open_checkpoint(single).tensors) == set(TENSORS)


def test_folder_does_not_exist(tmp_path):
    assert "does not exist" in folder_complaint(tmp_path / "nowhere")


def test_file_instead_of_folder(single):
    assert "give the folder" in folder_complaint(single / WEIGHTS)


def test_config_missing(single):
    (single / CONFIG).unlink()
    assert f"no {CONFIG}" in folder_complaint(single)


@pytest.mark.parametrize("text", [b"{", b"", b"\xff\xfe", b"[" * 200_000, b"{'a': 1}"])
def test_config_is_no_json(single, text):
    (single / CONFIG).write_bytes(text)
    assert "not valid JSON" in folder_complaint(single)


def test_config_is_no_object(single):
    (single / CONFIG).write_text("[1]")
    assert "no JSON object" in folder_complaint(single)


def test_weights_missing(single):
    (single / WEIGHTS).unlink()
    assert "weights are missing" in folder_complaint(single)


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


def test_weights_under_another_name(single):
    (single / WEIGHTS).rename(single / "weights.safetensors")
    assert "weights.safetensors" in folder_complaint(single)


def test_shards_without_index(sharded):
    (sharded / INDEX).unlink()
    assert INDEX in folder_complaint(sharded)


def test_single_file_beside_shards(sharded):
    save_file(TENSORS, sharded / WEIGHTS)
    assert "both" in folder_complaint(sharded)


def test_shard_listed_but_absent(sharded):
    (sharded / SHARDS[1]).unlink()
    assert f"lists {SHARDS[1]}, which is missing" in folder_complaint(sharded)


def test_truncated_shard_is_named(sharded):
    path = sharded / SHARDS[1]
    path.write_bytes(path.read_bytes()[:-3])
    message = folder_complaint(sharded)
    assert SHARDS[1] in message
    assert "truncated" in message


def test_tensor_listed_in_the_wrong_shard(sharded):
    write_index(sharded, {"a.weight": SHARDS[0], "b.weight": SHARDS[1], "c.weight": SHARDS[1]})
    assert f"'b.weight' in {SHARDS[1]}, but it is in {SHARDS[0]}" in folder_complaint(sharded)


def test_tensor_listed_but_stored_nowhere(sharded):
    write_index(sharded, dict.fromkeys(["a.weight", "b.weight", "d.weight"], SHARDS[0]) | {"c.weight": SHARDS[1]})
    assert "'d.weight'" in folder_complaint(sharded)


def test_tensor_stored_but_not_listed(sharded):
    write_index(sharded, {"a.weight": SHARDS[0], "c.weight": SHARDS[1]})
    assert "'b.weight'" in folder_complaint(sharded)


def test_tensor_in_two_shards(sharded):
    save_file({name: TENSORS[name] for name in ("a.weight", "c.weight")}, sharded / SHARDS[1])
    message = folder_complaint(sharded)
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
    message = folder_complaint(sharded)
    assert repr(name) in message
    assert "refused" in message


def test_shard_that_is_a_link_out_of_the_folder(sharded):
    outside = sharded.parent / "outside.safetensors"
    (sharded / SHARDS[1]).rename(outside)
    (sharded / SHARDS[1]).symlink_to(outside)
    assert "leaves its folder" in folder_complaint(sharded)


def test_shard_that_is_a_dangling_link(sharded):
    (sharded / SHARDS[1]).unlink()
    (sharded / SHARDS[1]).symlink_to(sharded / "nothing")
    assert "is missing" in folder_complaint(sharded)


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
    assert "weight_map" in folder_complaint(sharded)


def test_index_is_no_json(sharded):
    (sharded / INDEX).write_text("{")
    assert "not valid JSON" in folder_complaint(sharded)


def test_unreadable_file_is_one_line(single, monkeypatch):
    def refuse(self, *arguments, **keywords):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(type(single), "open", refuse)
    assert "cannot be read: Permission denied" in folder_complaint(single)
