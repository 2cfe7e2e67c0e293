"""Stored tensors arrive in the asked dtype, whole or in blocks of rows, in memory of the model's own."""

import pytest
import torch
from safetensors.torch import save_file

from loopscope import load_model
from loopscope.errors import LoopscopeError
from loopscope.models.checkpoint import read_header


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
