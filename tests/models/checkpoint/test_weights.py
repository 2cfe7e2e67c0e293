"""Bytes arrive where they belong, in the asked dtype, whatever the window, the alignment and the shape."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from loopscope.errors import LoopscopeError
from loopscope.models.checkpoint.safetensors import read_header
from loopscope.models.checkpoint.weights import copy_tensor, stored_dtype

TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_converts_like_torch(tmp_path, source, target):
    tensor = torch.randn(37, 11, generator=torch.Generator().manual_seed(0)).to(source)
    save_file({"other": torch.randn(5), "x": tensor}, tmp_path / "m.safetensors")
    result = torch.full((37, 11), torch.nan, dtype=target)
    copy_tensor(read_header(tmp_path / "m.safetensors")["x"], result)
    torch.testing.assert_close(result, tensor.to(target), rtol=0, atol=0)


@pytest.mark.parametrize("window", [1, 2, 4, 100, 4096, 10_000, 1 << 20])
def test_window_size_changes_nothing(tmp_path, window):
    tensor = torch.arange(3000, dtype=torch.float32).reshape(30, 100)
    save_file({"pad": torch.zeros(1), "x": tensor}, tmp_path / "m.safetensors")
    result = torch.empty(30, 100)
    copy_tensor(read_header(tmp_path / "m.safetensors")["x"], result, window_bytes=window)
    assert torch.equal(result, tensor)


@pytest.mark.parametrize("pad", range(8))
def test_unaligned_header(tmp_path, pad):
    tensor = torch.arange(12, dtype=torch.float32)
    table = json.dumps({"x": {"dtype": "F32", "shape": [12], "data_offsets": [0, 48]}}).encode() + b" " * pad
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(table)) + table + tensor.numpy().tobytes())
    result = torch.empty(12)
    copy_tensor(read_header(tmp_path / "m.safetensors")["x"], result)
    assert torch.equal(result, tensor)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_scalars_and_empty_tensors(tmp_path, shape):
    tensor = torch.full(shape, 7.0)
    save_file({"x": tensor}, tmp_path / "m.safetensors")
    result = torch.zeros(shape)
    copy_tensor(read_header(tmp_path / "m.safetensors")["x"], result)
    assert torch.equal(result, tensor)


def test_file_may_change_after_the_copy(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"x": torch.ones(1000)}, path)
    result = torch.empty(1000)
    copy_tensor(read_header(path)["x"], result)
    with path.open("r+b") as file:
        file.truncate(10)
    assert torch.equal(result, torch.ones(1000))


@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        (torch.zeros(4, dtype=torch.float8_e4m3fn), "F8_E4M3"),
        (torch.zeros(4, dtype=torch.float8_e5m2), "F8_E5M2"),
        (torch.zeros(4, dtype=torch.int64), "I64"),
    ],
)
def test_unsupported_type_is_named(tmp_path, tensor, name):
    save_file({"x": tensor}, tmp_path / "m.safetensors")
    with pytest.raises(LoopscopeError, match=f"'x' as {name}"):
        stored_dtype(read_header(tmp_path / "m.safetensors")["x"])
