"""The hash of a model in memory: what changes it, what does not, and what it cannot see."""

import functools
import hashlib
import json
import types
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

from loopscope.errors import LoopscopeError
from loopscope.models import Batch, load_model
from loopscope.models import identity as module
from loopscope.models.identity import model_identity, weights_sha256


def fixed(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Small(nn.Module):
    """A parameter, a buffer, a buffer that no state_dict holds, a plain tensor and layers in a plain list."""

    def __init__(self, changed=""):
        super().__init__()
        held = {name: fixed(3, 2, seed=int(name == changed)) for name in ("w", "b", "hidden", "plain", "listed")}
        self.w = nn.Parameter(held["w"])
        self.register_buffer("b", held["b"])
        self.register_buffer("hidden", held["hidden"], persistent=False)
        self.plain = held["plain"]
        layer = nn.Linear(2, 3, bias=False)
        layer.weight.data = held["listed"]
        self.layers = [layer]


def test_hash_is_that_of_names_types_shapes_and_bytes():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    digest = hashlib.sha256()
    for part, tensor in [
        *(("0." + name, tensor) for name, tensor in module[0].named_parameters()),
        *(("1." + name, tensor) for name, tensor in module[1].named_parameters()),
        *(("1." + name, tensor) for name, tensor in module[1].named_buffers()),
    ]:
        digest.update(json.dumps([part, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().numpy().tobytes())
    assert weights_sha256(module) == digest.hexdigest()


@pytest.mark.parametrize("changed", ["w", "b", "hidden", "plain", "listed"])
def test_every_tensor_of_a_module_counts(changed):
    assert weights_sha256(Small()) == weights_sha256(Small())
    assert weights_sha256(Small()) != weights_sha256(Small(changed))


def test_dtype_shape_and_name_count():
    one, other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    one.weight.data, other.weight.data = torch.zeros(2, 2), torch.zeros(1, 4)
    renamed = nn.Module()
    renamed.weights = nn.Parameter(torch.zeros(2, 2))
    halved = nn.Module()
    halved.weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.float16))
    assert len({weights_sha256(model) for model in (one, other, renamed, halved)}) == 4


@dataclass
class Plain:
    """A model that is no module."""

    weights: object
    more: dict = field(default_factory=dict)


class Slotted:
    __slots__ = ("w",)

    def __init__(self, w):
        self.w = w


def closed_over(w):
    return lambda state: state @ w


HOLDERS = {
    "attribute": Plain,
    "dictionary": lambda w: Plain(None, {"a": {"b": [w]}}),
    "array": lambda w: Plain(w.numpy()),
    "slot": Slotted,
    "closure": lambda w: Plain(closed_over(w)),
    "partial": lambda w: Plain(functools.partial(torch.matmul, other=w)),
    "method": lambda w: types.SimpleNamespace(step=Slotted.__init__.__get__(Slotted(w))),
    "default": lambda w: Plain(lambda state, w=w: state @ w),
    "module": lambda w: Plain(nn.ParameterList([w])),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_tensors_of_plain_objects_are_found(holder):
    make = HOLDERS[holder]
    assert weights_sha256(make(fixed(2, 2))) == weights_sha256(make(fixed(2, 2)))
    assert weights_sha256(make(fixed(2, 2))) != weights_sha256(make(fixed(2, 2, seed=1)))


def test_object_that_holds_itself_ends():
    model = Plain(fixed(2))
    model.more["model"] = model
    assert weights_sha256(model) == weights_sha256(Plain(fixed(2)))


@pytest.mark.parametrize(
    "tensor",
    [
        fixed(6, 4).T,
        fixed(3, dtype=torch.bfloat16),
        torch.tensor(2.5),
        torch.tensor([True, False]),
        torch.zeros(0, 3),
        fixed(4, 4).to_sparse(),
        torch.view_as_complex(fixed(3, 2)).conj(),
    ],
)
def test_layouts_and_types(tensor):
    twin = tensor.clone()
    assert weights_sha256([tensor]) == weights_sha256([twin])
    if tensor.numel() > 1 and tensor.dtype != torch.bool:
        assert weights_sha256([tensor]) != weights_sha256([twin * 2])


def test_windows_change_nothing(monkeypatch):
    whole = weights_sha256([fixed(100, 7)])
    monkeypatch.setattr(module, "WINDOW_BYTES", 64)
    assert weights_sha256([fixed(100, 7)]) == whole


def test_strided_array_counts_by_its_values():
    array = np.arange(12.0).reshape(3, 4)
    assert weights_sha256([array.T]) == weights_sha256([array.T.copy()]) != weights_sha256([array.T + 1])


def test_using_a_model_leaves_its_hash(tiny):
    model = load_model(tiny("huginn"))
    before = weights_sha256(model)
    state = model.states(Batch.from_rows([[1, 2, 3]]), [1])[1]
    model.readout(state, dtype=torch.float64)
    assert model._casts
    assert weights_sha256(model) == before


def test_tensor_without_bytes_is_one_line():
    with pytest.raises(LoopscopeError, match=r"tensor 'weight' cannot be read \(it is on the meta device\)") as caught:
        weights_sha256(nn.Linear(2, 2, device="meta"))
    assert "\n" not in str(caught.value)


def test_numbers_and_strings_are_not_part_of_it():
    assert weights_sha256(Plain(1.5, {"name": "a"})) == weights_sha256(Plain(2.5, {"name": "b"}))


def classes(code):
    """A module's classes, from a file, since code without a file has no source."""
    space = {"__name__": "typed"}
    exec(code, space)
    return space


def test_class_is_named_and_code_without_source_is_known_by_name():
    one, other = (classes("class One: pass\nclass Two: pass")[name]() for name in ("One", "Two"))
    assert [*model_identity(one)] == ["tensors", "class typed.One"]
    assert model_identity(one) != model_identity(other)


@pytest.mark.parametrize("body", ["x + 2", "x in {'a', 'b'}", "(lambda y: y + 1)(x)"])
def test_code_without_source_is_known_by_what_it_was_translated_to(body):
    def made(text):
        return model_identity(classes(f"class One:\n    def step(self, x):\n        return {text}")["One"]())

    assert made(body) == made(body)
    assert made(body) != made("x + 1")


def test_constants_are_in_an_order_that_stays():
    many = frozenset(map(str, range(100)))
    assert module._constant(many) == sorted(map(repr, many))


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
