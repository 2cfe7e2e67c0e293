"""The hash of a model in memory: what changes it, what does not."""

import hashlib
import json

import pytest
import torch
from torch import nn

from loopscope.errors import LoopscopeError
from loopscope.models.in_memory import model_identity, weights_sha256


def fixed(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def held(tensor, name="weight"):
    made = nn.Module()
    made.register_buffer(name, tensor)
    return made


def test_hash_is_that_of_names_types_shapes_and_bytes():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().numpy().tobytes())
    assert weights_sha256(module) == digest.hexdigest()


def test_shared_memory_counts_once():
    one, twin = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))
    twin[0].weight, twin[0].bias = one.weight, one.bias
    both = nn.ModuleDict({"a": one})
    alone = weights_sha256(both)
    both["b"] = twin
    assert weights_sha256(both) == alone


@pytest.mark.parametrize(
    "tensor",
    [
        fixed(6, 4).T,
        fixed(3, dtype=torch.bfloat16),
        torch.tensor(2.5),
        torch.tensor([True, False]),
        torch.zeros(0, 3),
        torch.view_as_complex(fixed(3, 2)).conj(),
    ],
)
def test_layouts_and_types(tensor):
    twin = tensor.clone()
    assert weights_sha256(held(tensor)) == weights_sha256(held(twin))
    if tensor.numel() > 1 and tensor.dtype != torch.bool:
        assert weights_sha256(held(tensor)) != weights_sha256(held(twin * 2))


def test_tensor_without_bytes_is_one_line():
    with pytest.raises(LoopscopeError, match=r"tensor 'weight' cannot be read") as caught:
        weights_sha256(nn.Linear(2, 2, device="meta"))
    assert "\n" not in str(caught.value)


def test_the_configuration_counts():
    def made(**config):
        model = nn.Linear(1, 1)
        nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
        model.config = config
        return model_identity(model)

    assert made(a=1) == made(a=1) != made(a=2)


@pytest.mark.parametrize("body", ["x + y", "x + y.z"])
def test_code_without_source_is_known_by_its_bytecode(body):
    def made(text):
        space = {"__name__": "typed"}
        exec(f"class One:\n    def step(self, x):\n        return {text}", space)
        return model_identity(space["One"]())

    assert made(body) == made(body) != made("x * 2")


def test_code_of_inner_modules_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    for name, body in (("first_blocks", "return x"), ("other_blocks", "return x + 1")):
        code = f"from torch import nn\nclass Block(nn.Module):\n    def forward(self, x):\n        {body}\n"
        (tmp_path / f"{name}.py").write_text(code)
        block = __import__(name).Block
        block.__module__ = "blocks"
        monkeypatch.setitem(__import__("sys").modules, "blocks", __import__(name))
        found.append(model_identity(nn.Sequential(block())))
    assert found[0]["tensors"] == found[1]["tensors"]
    assert found[0] != found[1]


def test_plain_attributes_and_what_a_function_closes_over_count():
    class Capped(nn.Module):
        def __init__(self, cap):
            super().__init__()
            self.cap = cap

    assert model_identity(Capped(1.0)) == model_identity(Capped(1.0).eval()) != model_identity(Capped(3.0))

    def wrapped(scale):
        model = nn.Linear(1, 1)
        nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
        model.functions = {"readout": lambda state: scale * state}
        return model_identity(model)

    assert wrapped(1.0) == wrapped(1.0) != wrapped(2.0)
