"""`auto` takes Taylor mode where it can and nested forward mode where it cannot, and says so in one line."""

from __future__ import annotations

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.readout import nonlinear_path
from loopscope.readout.autograd import Derivation

G = torch.Generator().manual_seed(5)
W = torch.randn(6, 4, generator=G, dtype=torch.float64)
STATE, STEP = torch.randn(2, 3, 4, generator=G, dtype=torch.float64)


def known(h):
    return torch.relu(h) ** 2 @ W.T


def unknown(h):
    return torch.special.i0(h) @ W.T


def checks_types(h):
    if not isinstance(h, torch.Tensor):
        raise TypeError("a tensor, please")
    return torch.tanh(h) @ W.T


def undifferentiable(h):
    return torch.nn.functional.hardsigmoid(torch.special.i0(h)) @ W.T


def path(readout, impl="auto"):
    return nonlinear_path(readout, STATE, STEP, [2, 0, 1], impl=impl)


@pytest.mark.parametrize("readout", [unknown, checks_types])
def test_auto_goes_on_by_nested_forward_mode(readout):
    found = path(readout)
    assert (found.backends_used, found.note) == (set(), "")
    assert torch.equal(found.derivatives(0.3, order=3).stack, path(readout, "nested").derivatives(0.3, order=3).stack)
    assert found.backends_used == {"nested"}
    assert "nested forward mode, which is slower" in found.note
    assert "\n" not in found.note


def test_auto_takes_taylor_mode_where_every_operation_has_a_rule():
    found = path(known)
    assert torch.equal(found.derivatives(0.3, order=3).stack, path(known, "taylor").derivatives(0.3, order=3).stack)
    assert (found.backends_used, found.note) == ({"taylor"}, "")


def test_what_neither_way_knows_is_one_line():
    with pytest.raises(LoopscopeError, match=r"'special_i0'.*nested forward mode.*docs/your-own-model.md") as caught:
        _ = path(undifferentiable).slope
    assert "\n" not in str(caught.value)


def test_paths_of_one_readout_find_out_once():
    calls = []

    def counted(h):
        calls.append(type(h).__name__)
        return unknown(h)

    shared = Derivation()
    for _ in range(2):
        _ = path(counted, shared).slope
    assert calls.count("Series") == 1
    assert shared.impl == "nested"


def test_what_is_refused_is_not_tried_another_way():
    with pytest.raises(LoopscopeError, match=r"model.eval\(\)"):
        _ = path(lambda h: torch.nn.functional.dropout(h, 0.5 if not isinstance(h, torch.Tensor) else 0.0) @ W.T).slope


def test_running_out_of_memory_is_not_taken_for_a_missing_rule():
    def greedy(h):
        if not isinstance(h, torch.Tensor):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return h @ W.T

    with pytest.raises(torch.OutOfMemoryError):
        _ = path(greedy).slope


def test_nested_forward_mode_takes_tokens_in_chunks(monkeypatch):
    from loopscope.models.protocol import BodyAndHead
    from loopscope.readout.general import path as module

    states = torch.randn(2, 2, 20, 4, generator=G, dtype=torch.float64)
    positions = torch.tensor([[row, place] for row in range(2) for place in range(20)])
    readout = BodyAndHead(lambda h, where: torch.special.i0(h[where[:, 0], where[:, 1]]), lambda x: x @ W.T, 6)
    whole, parts = (nonlinear_path(readout, *states, torch.arange(40) % 6, positions, impl="nested") for _ in range(2))
    expected = whole.derivatives(0.2, order=2).stack
    monkeypatch.setattr(module, "_NESTED_ELEMENTS", 1)
    torch.testing.assert_close(parts.derivatives(0.2, order=2).stack, expected)
