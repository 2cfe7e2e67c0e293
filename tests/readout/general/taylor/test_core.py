"""The series class itself: what it says of itself, and operations without a rule."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from loopscope.errors import LoopscopeError
from loopscope.readout.general.taylor import Series

G = torch.Generator().manual_seed(7)


def _randn(*shape):
    return torch.randn(*shape, generator=G, dtype=torch.float64)


def _ones(*shape):
    return torch.ones(*shape, dtype=torch.float64)


W = _randn(4, 6)
K = _randn(2, 3, 4)
CAUSAL = torch.ones(3, 3, dtype=torch.bool).tril()


def heads(x):
    """[2, 3, 4] as two heads of width two: [2, heads, 3, 2]."""
    return x.unflatten(-1, (2, 2)).transpose(1, 2)


UNSUPPORTED = {
    "relu": (lambda x: torch.relu(x), "relu"),
    "max": (lambda x: x.amax(-1), "amax"),
    "in-place": (lambda x: x.add_(1.0), "add_"),
    "in-place-on-tensor": (lambda x: _ones(2, 3, 4).mul_(x), "mul_"),
    "comparison": (lambda x: x > 0, "lt"),
    "decision": (lambda x: bool(x), "__bool__"),
    "write": (lambda x: x.__setitem__(0, 1.0), "__setitem__"),
    "state-dependent-power": (lambda x: x**x, "pow"),
    "rounding": (lambda x: torch.div(x, 2.0, rounding_mode="floor"), "div"),
    "training-dropout": (lambda x: functional.dropout(x, 0.5, training=True), "dropout"),
    "state-dependent-condition": (lambda x: torch.where(x, x, x), "where"),
    "reinterpreted-bits": (lambda x: x.view(torch.int64), "view"),
    "reflected-padding": (lambda x: functional.pad(x, (1, 1), mode="reflect"), "pad"),
    "weight-from-state": (lambda x: functional.linear(K, x), "linear"),
    "implicit-einsum": (lambda x: torch.einsum("bij,jk", x, W), "einsum"),
    "three-factors": (lambda x: torch.einsum("bij,bij,bij->b", x, x, x), "einsum"),
    "softmax-without-axis": (lambda x: functional.softmax(x, dim=None), "softmax"),
    "log-softmax-without-axis": (lambda x: functional.log_softmax(x, dim=None), "log_softmax"),
    "attention-dropout": (
        lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        "scaled_dot_product",
    ),
    "attention-two-masks": (
        lambda x: functional.scaled_dot_product_attention(x, x, x, attn_mask=CAUSAL, is_causal=True),
        "scaled_dot_product",
    ),
    "attention-mask-from-state": (
        lambda x: functional.scaled_dot_product_attention(K, K, K, attn_mask=x @ x.mT),
        "scaled_dot_product",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_operation_without_a_rule_is_named_with_the_remedy(name, line):
    function, operation = UNSUPPORTED[name]
    with pytest.raises(LoopscopeError, match=operation) as caught:
        function(Series.line(*line, 2))
    assert "impl='nested'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_attributes_are_attribute_errors(line):
    series = Series.line(*line, 1)
    with pytest.raises(AttributeError, match="no_such_thing"):
        series.no_such_thing  # noqa: B018
    assert not hasattr(series, "grad_fn")


def test_a_series_describes_itself(line):
    series = Series.line(*line, 2)
    assert repr(series) == "Series(order=2, shape=(2, 3, 4), dtype=torch.float64)"
    assert (series.order, len(series), series.ndim, series.device.type) == (2, 2, 3, "cpu")
    assert not series.requires_grad
    assert not series.is_cuda
