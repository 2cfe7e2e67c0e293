"""The series class itself: what it says of itself, and operations without a rule."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from loopscope.errors import LoopscopeError
from loopscope.readout.general.core import MissingRuleError, Series

G = torch.Generator().manual_seed(7)


def _randn(*shape):
    return torch.randn(*shape, generator=G, dtype=torch.float64)


def _ones(*shape):
    return torch.ones(*shape, dtype=torch.float64)


CAUSAL = torch.ones(3, 3, dtype=torch.bool).tril()


UNSUPPORTED = {
    "no-rule": (lambda x: torch.lgamma(x), "lgamma"),
    "in-place-without-rule": (lambda x: x.fill_(1.0), "fill_"),
    "in-place-on-tensor": (lambda x: _ones(2, 3, 4).mul_(x), "mul_"),
    "into-tensor": (lambda x: torch.mul(x, x, out=_ones(2, 3, 4)), "mul"),
    "write-into-series": (lambda x: x.__setitem__(0, 1.0), "__setitem__"),
    "reinterpreted-bits": (lambda x: x.view(torch.int64), "view"),
    "power-of-state": (lambda x: 2.0**x, "pow"),
    "weight-of-state": (lambda x: functional.linear(_ones(3, 4), x[0]), "linear"),
    "multi-head": (lambda x: nn.MultiheadAttention(4, 2).double().eval()(x, x, x), "multi_head_attention_forward"),
    "attention-two-masks": (
        lambda x: functional.scaled_dot_product_attention(x, x, x, attn_mask=CAUSAL, is_causal=True),
        "scaled_dot_product",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_operation_without_a_rule_is_named_with_the_remedy(name, line):
    function, operation = UNSUPPORTED[name]
    with pytest.raises(MissingRuleError, match=operation) as caught:
        function(Series.line(*line, 2))
    assert "impl='nested'" in str(caught.value)
    assert "\n" not in str(caught.value)


REFUSED = {
    "dropout": lambda x: functional.dropout(x, 0.5, training=True),
    "attention-dropout": lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "random": lambda x: torch.randn_like(x),
    "number": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "numpy": lambda x: x.numpy(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_derivatives_by_any_way_is_refused(name, line):
    with pytest.raises(LoopscopeError, match="has no derivatives here") as caught:
        REFUSED[name](Series.line(*line, 2))
    assert not isinstance(caught.value, MissingRuleError)


class _Listening(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.heard = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.heard.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_of_torch_hear_of_methods(line):
    with _Listening() as outer, _Listening() as inner, torch.device("cpu"):
        found = Series.line(*line, 2).to(torch.float32).relu()
    assert found.dtype == torch.float32
    assert outer.heard.count("relu") == inner.heard.count("relu") == 1


def test_unknown_attributes_are_attribute_errors(line):
    series = Series.line(*line, 1)
    with pytest.raises(AttributeError, match="no_such_thing"):
        series.no_such_thing  # noqa: B018
    assert not hasattr(series, "grad_fn")
