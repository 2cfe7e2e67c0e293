"""Every operation that has a rule, in small functions of x [2, 3, 4]: against nested forward mode, to the fourth
derivative, in float64; and what is taken where an operation is not smooth."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from loopscope.models.layers.blocks import gated_silu_joined
from loopscope.models.layers.positions import Rotary, rotate_own
from loopscope.readout.general import core, layers
from loopscope.readout.general.core import Series

G = torch.Generator().manual_seed(7)


def randn(*shape):
    return torch.randn(*shape, generator=G, dtype=torch.float64)


K, W, BIAS = randn(2, 3, 4), randn(4, 6), randn(4)
MASK = torch.tensor([[True, False, True, True], [False, True, True, False], [True, True, False, True]])
ROWS, COLUMNS = torch.tensor([1, 0, 1]), torch.tensor([0, 3, 2])
PLACES = torch.tensor([[[0], [3], [1]], [[2], [2], [0]]])
CAUSAL = torch.ones(3, 3, dtype=torch.bool).tril()
FULLY_MASKED = CAUSAL.clone()
FULLY_MASKED[1] = False
BY_ROW = torch.stack([CAUSAL, CAUSAL.flip(1).T])[:, None]
BY_HEAD = torch.stack([CAUSAL, CAUSAL.flip(1).T, CAUSAL, FULLY_MASKED | CAUSAL.T]).reshape(2, 2, 3, 3)
POSITIONS = torch.tensor([[0, 3, 8], [5, 1, 0]])


def positive(x):
    return x * x + 0.5


def heads(x):
    """[2, 3, 4] as two heads of width two: [2, heads, 3, 2]."""
    return x.unflatten(-1, (2, 2)).transpose(1, 2)


def attention(query, key, value, **options):
    return functional.scaled_dot_product_attention(heads(query), heads(key), heads(value), **options)


def by_hand(x):
    """Attention as models write it out, with a softcap."""
    scores = 5.0 * torch.tanh(heads(x) @ heads(x).transpose(-1, -2) / math.sqrt(2.0) / 5.0)
    scores = scores.masked_fill(~CAUSAL, -torch.inf)
    return (functional.softmax(scores, dim=-1, dtype=torch.float64) @ heads(x)).transpose(1, 2).flatten(2)


def turned(x, layout, bias=None):
    tables = Rotary(4, 100.0, layout).tables(POSITIONS, torch.float64)
    return rotate_own((x * x).reshape(2, 3, 1, 4), tables, bias)  # a fresh tensor: it may be written into


def in_place(x):
    y = x * x
    alias, part = y, y[..., 1:3]
    y += x
    y *= 2.0
    y -= K
    y /= positive(x)
    y **= 2
    part += x[..., :2]
    return functional.relu(y.add_(1.0).mul_(x), inplace=True) + alias


def experts(x):
    """A mixture of two experts of four, by the routing that published models use."""
    flat = x.flatten(0, 1)
    top = torch.softmax(flat @ W[:, :4], -1).topk(2, -1)
    share = top.values / top.values.sum(-1, keepdim=True)
    out = torch.zeros_like(flat)
    for expert in range(4):
        rows, places = torch.where(top.indices == expert)
        out.index_add_(0, rows, functional.silu(flat[rows] * (expert + 1)) * share[rows, places, None])
    return out


CASES = {
    "sums": lambda x: torch.add(x, x * x, alpha=2) + K + 1.5 + x[0, 0] - torch.sub(x, K, alpha=3) + (2.0 - x) + -x,
    "products": lambda x: x * x * K * 2.0 + K * x + x[0, 0] * K + K[0] * x + torch.neg(x),
    "quotients": lambda x: x / positive(x) + K / positive(x) + x / 2.0 + 1.0 / positive(x) + x / K.abs().add(1.0)[0],
    "powers": lambda x: x**3 + positive(x) ** 1.7 + positive(x) ** -2 + x.pow(1) + x.pow(2.0) + torch.square(x),
    "roots": lambda x: torch.sqrt(positive(x)) + torch.rsqrt(positive(x)) + torch.reciprocal(positive(x)),
    "exp": lambda x: torch.exp(x) + torch.log(positive(x)),
    "sigmoid": lambda x: torch.sigmoid(3.0 * x),
    "tanh": lambda x: torch.tanh(2.0 * x),
    "softcap": lambda x: 15.0 * torch.tanh(functional.linear(x * x, W.T) / 15.0),
    "silu": lambda x: functional.silu(x * 2.0),
    "gelu": lambda x: functional.gelu(x) + functional.gelu(x, approximate="tanh"),
    "relu": lambda x: torch.relu(x).square() + functional.relu(x * x - 0.5) + x.relu(),
    "where": lambda x: torch.where(MASK, x * x, 0.1) + torch.where(x > 0.1, K, x) + torch.where(x < 0, x, x**3),
    "comparisons": lambda x: (
        x * x * (x > 0) + x * (x <= K) * (x == x) * (x != 3.0) * (x >= -9.0) + torch.where(x < 0, K, 0.0)
    ),
    "decision": lambda x: x * x if x.sum() < 1e9 and bool((x * x).sum()) else x,
    "clamp": lambda x: torch.clamp(x * x, 0.2, 0.9) + x.clamp(min=-0.1) + x.clamp(K, K + 1),
    "masked_fill": lambda x: functional.dropout((x * x).masked_fill(MASK, 0.1), 0.5, training=False),
    "reductions": lambda x: (
        (x * x).sum() + (x * x).sum(-1) + torch.sum(x, dim=(0, 1), keepdim=True)[..., :3][0] + (x * x).mean()
        + torch.mean(x * x, dim=-1, keepdim=True)[..., 0]
    ),
    "cumsum": lambda x: torch.cumsum(x * x, 1),
    "softmax": lambda x: torch.softmax(4.0 * x * x, -1) + functional.softmax(x, dim=1) + x.softmax(0),
    "softmax-masked": lambda x: torch.softmax((x * x).masked_fill(MASK, -torch.inf), -1),
    "log_softmax": lambda x: torch.log_softmax(4.0 * x * x, -1) + functional.log_softmax(x, dim=1),
    "logsumexp": lambda x: torch.logsumexp(3.0 * x * x, -1) + torch.logsumexp(x, 2, keepdim=True)[..., 0],
    "linear": lambda x: functional.linear(x * x, W.T, W[0]),
    "matmul": lambda x: (x * x) @ W + torch.ones(2, 3, 3).double() @ (x @ W) + x @ x.mT @ (x @ W),
    "matmul-vectors": lambda x: (x * x) @ W[:, 0] + K[0, 0] @ x.mT + K[0] @ x[0, 0] + torch.mv(x[0], x[1, 1]),
    "matmul-broadcast": lambda x: (x * x)[0] @ K.mT + K @ x[1].mT + torch.bmm(x, K.mT),
    "addmm": lambda x: torch.addmm(torch.ones(3, 6).double(), torch.mm(x[0], x[0].T @ x[1]), W, beta=0.5, alpha=2.0),
    "rms_norm": lambda x: functional.rms_norm(x * x, (4,), BIAS, 1e-5) + functional.rms_norm(x, (3, 4)),
    "layer_norm": lambda x: functional.layer_norm(x * x, (4,), BIAS, K[0, 1], 1e-5),
    "gated_silu_joined": lambda x: gated_silu_joined(3.0 * x * x - x, plain=True),
    "rotate_own": lambda x: turned(x, "half") + turned(x, "interleaved", BIAS[None]),
    "attention-causal": lambda x: attention(x, x @ W[:, :4], x, is_causal=True),
    "attention-bias": lambda x: attention(x, x, K, attn_mask=CAUSAL.double()) + attention(x * x, K, K, scale=0.7),
    "attention-grouped": lambda x: functional.scaled_dot_product_attention(
        heads(x), heads(x)[:, :1], heads(x * x)[:, :1], is_causal=True, enable_gqa=True
    ),
    "attention-mask-by-row": lambda x: attention(x, x, x, attn_mask=BY_ROW),
    "attention-mask-by-head": lambda x: attention(x, x, x, attn_mask=BY_HEAD),
    "attention-at-a-few-positions": lambda x: functional.scaled_dot_product_attention(
        heads(x)[:, :, 1:], heads(x), heads(x), attn_mask=BY_ROW[:, :, 1:]
    ),
    "attention-by-hand": by_hand,
    "reshape": lambda x: torch.reshape(x * x, (6, -1)) + (x * x).view(6, 4) + (x * x).flatten(0, 1),
    "transpose": lambda x: (x * x).transpose(0, -1) + x.permute(2, 1, 0) + torch.permute(x, (-1, 1, 0)),
    "transposed-matrix": lambda x: (x * x)[0].t() + (x * x)[0].T + (x * x)[1].T + x[0].mT,
    "unsqueeze": lambda x: (x * x).unsqueeze(1) + x.unsqueeze(-3) + (x * x)[:1].squeeze(0) + x[:1].squeeze(),
    "squeeze-axes": lambda x: (x * x)[:1, :1].squeeze((0, 1)) + x[:1, :1, :1].squeeze(),
    "repeats": lambda x: (x * x)[:, :1].expand(5, -1, 3, 4)[0] + (x * x).repeat_interleave(3, dim=1)[:, ::3],
    "parts": lambda x: (lambda a, b: a * b)(*(x * x).chunk(2, -1)) + torch.split(x * x, [1, 3], dim=-1)[1][..., :2],
    "unbind": lambda x: torch.unbind(x * x, 1)[2] + next(iter(x))[:2] + (x * x).select(1, 2),
    "index_select": lambda x: (x * x).index_select(0, ROWS) * x.gather(2, PLACES)[ROWS],
    "getitem": lambda x: (x * x)[..., 1::2] + x[:, None, 0, 0::2] + x[0, 1, 2],
    "getitem-tensors": lambda x: (x * x)[ROWS, COLUMNS.clamp(max=2)] + x[0, 0, [0, 1, 3, 2]] + x[:1, MASK][0, 0],
    "getitem-separated": lambda x: (x * x)[ROWS, :, COLUMNS] + (x * x)[0, :, COLUMNS],
    "joined": lambda x: torch.cat([x * x, K, x], dim=1)[:, :3, :, None] + torch.stack([x * x, K], dim=-1),
    "copies": lambda x: (x * x).transpose(0, 1).contiguous().transpose(0, 1).clone() + x.contiguous(),
    "dtypes": lambda x: (x * x).to(torch.float64).to(K).type_as(K).double() + K.to(x) * x * K.type_as(x),
    "facts": lambda x: x * x.detach() * x.size(-1) * x.size()[0] * x.dim() / x.numel() * x.is_floating_point(),
    "in-place": in_place,
    "experts": experts,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rule_agrees_with_nested_forward_mode(name, agrees_with_nesting):
    agrees_with_nesting(CASES[name])


def test_every_rule_is_exercised(monkeypatch, line):
    hit = set()

    def recording(name, rule):
        return lambda *args, **kwargs: (hit.add(name), rule(*args, **kwargs))[1]

    monkeypatch.setattr(core, "RULES", {name: recording(name, rule) for name, rule in core.RULES.items()})
    for function in CASES.values():
        function(Series.line(*line, 2))
    assert set(core.RULES) - hit == {"float"}


# By operation: a function of one number, the places where it is not smooth, and the slopes that are taken there.
AT_KINKS = {
    "relu": (torch.relu, [0.0], [0.0]),
    "clamp": (lambda x: x.clamp(-1.0, 1.0), [-1.0, 1.0], [1.0, 1.0]),
    "where": (lambda x: torch.where(x > 0, x, 3.0 * x), [0.0], [3.0]),
}


@pytest.mark.parametrize("name", AT_KINKS)
def test_where_it_is_not_smooth_the_slope_is_torchs_own(name):
    function, places, slopes = AT_KINKS[name]
    for place, slope in zip(places, slopes, strict=True):
        x = torch.tensor([place], dtype=torch.float64, requires_grad=True)
        (by_torch,) = torch.autograd.grad(function(x).sum(), x)
        series = function(Series.line(x.detach(), torch.ones_like(x), 3))
        assert float(series.derivative(1)) == pytest.approx(slope)
        assert float(by_torch) == pytest.approx(slope)
        assert float(series.derivative(0)) == pytest.approx(float(function(x).detach()))
        assert bool(torch.isfinite(series.coefficients).all())


@pytest.mark.parametrize("power", [2, 3])
def test_powers_of_relu_are_smooth_enough_at_zero(power):
    x = Series.line(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64), 3)
    assert not (torch.relu(x) ** power).coefficients.any()


def test_softmax_loses_no_digits_to_a_common_drift():
    base = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    spread = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    still = torch.softmax(Series.line(base, spread, 3), -1).coefficients
    adrift = torch.softmax(Series.line(base, spread + 2.0**30, 3), -1).coefficients
    assert float((still - adrift).abs().max()) < 1e-12


class _Products(TorchDispatchMode):
    """Notes the shape of every matrix product that is really taken."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if "mm" in func.__name__:
            self.taken.append(tuple(out.shape))
        return out


def test_one_product_serves_all_coefficients(line):
    with _Products() as products:
        functional.linear(Series.line(*line, 3), W.T)
    assert products.taken == [(4 * 2 * 3, 6)]


@pytest.mark.parametrize("name", ["attention-causal", "attention-bias", "attention-mask-by-head"])
def test_reverse_mode_records_attention_as_well(name, line):
    state = line[0].clone().requires_grad_(True)
    found = CASES[name](Series.line(state, line[1], 1)).coefficients
    (gradient,) = torch.autograd.grad(found[0].sum(), state)
    (expected,) = torch.autograd.grad(CASES[name](state).sum(), state)
    torch.testing.assert_close(gradient, expected, rtol=1e-11, atol=1e-13)


def test_a_row_masked_everywhere_attends_to_nothing(line):
    x = Series.line(*line, 2)
    out = attention(x, x, x, attn_mask=FULLY_MASKED)
    assert torch.isfinite(out.coefficients).all()
    assert float(out.coefficients[:, :, :, 1].abs().max()) == 0.0


@pytest.mark.parametrize("name", ["attention-causal", "attention-mask-by-row", "attention-mask-by-head"])
@pytest.mark.parametrize("elements", [36])
def test_attention_in_pieces_is_the_same(monkeypatch, line, name, elements):
    x = Series.line(*line, 3)
    whole = CASES[name](x).coefficients
    monkeypatch.setattr(layers, "_ATTENTION_ELEMENTS", elements)
    torch.testing.assert_close(CASES[name](x).coefficients, whole, rtol=1e-13, atol=1e-15)
