"""Headers are believed only after they agree with the file; the safetensors library is the independent writer."""

import json
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from loopscope.errors import LoopscopeError
from loopscope.models.checkpoint.safetensors import read_header


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
