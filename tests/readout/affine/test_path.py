"""Affine paths: averages over examples, states and heads, and the properties that every such path has."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from loopscope.errors import LoopscopeError
from loopscope.readout import affine_path, affine_path_from_states

seeds = st.integers(0, 2**31)
sizes = st.sampled_from([1, 2, 3, 20, 150])
magnitudes = st.sampled_from([0.0, 1e-8, 0.1, 1.0, 10.0, 100.0])


def _draw(seed, tokens, vocabulary, peak, displacement):
    g = torch.Generator().manual_seed(seed)
    z0 = torch.randn(tokens, vocabulary, generator=g, dtype=torch.float64)
    z0[:, 0] += peak
    v = displacement * torch.randn(tokens, vocabulary, generator=g, dtype=torch.float64)
    return z0, v, torch.randint(0, vocabulary, (tokens,), generator=g)


@settings(max_examples=60, deadline=None)
@given(seeds, sizes, magnitudes, magnitudes)
def test_affine_paths_are_concave(seed, vocabulary, peak, displacement):
    z0, v, y = _draw(seed, 3, vocabulary, peak, displacement)
    d = affine_path(z0, v, y).derivatives([0.0, 0.2, 0.5, 1.0], 2)
    assert float(d.second.max()) <= 0.0
    if vocabulary > 1 and displacement > 0.0:
        assert float(d.second.max()) < 0.0
    chord = d.value[0] + 0.2 * (d.value[3] - d.value[0])
    assert float(d.value[1] - chord) >= -1e-12 * float(d.value.abs().max())


@settings(max_examples=60, deadline=None)
@given(seeds, sizes, magnitudes, magnitudes)
def test_shifting_logits_and_displacements_changes_nothing(seed, vocabulary, peak, displacement):
    z0, v, y = _draw(seed, 2, vocabulary, peak, displacement)
    # On a coarse grid of numbers a shift is exact, so the results must be equal to the bit.
    z0, v = torch.round(z0 * 2**20) / 2**20, torch.round(v * 2**20) / 2**20
    still = affine_path(z0, v, y).derivatives([0.0, 0.5, 1.0], 4).stack
    moved = affine_path(z0 + 64.0, v - 32.0, y).derivatives([0.0, 0.5, 1.0], 4).stack
    assert torch.equal(still, moved)


@settings(max_examples=60, deadline=None)
@given(seeds, sizes, magnitudes, magnitudes)
def test_permuting_the_vocabulary_changes_nothing(seed, vocabulary, peak, displacement):
    z0, v, y = _draw(seed, 2, vocabulary, peak, displacement)
    order = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(seed))
    place = torch.argsort(order)
    still, moved = affine_path(z0, v, y), affine_path(z0[:, order], v[:, order], place[y])
    scale = max(1.0, displacement)
    for k, (a, b) in enumerate(zip(still.derivatives([0.0, 0.5], 4), moved.derivatives([0.0, 0.5], 4), strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13 * scale**k)
    torch.testing.assert_close(still.divergence, moved.divergence, rtol=1e-12, atol=0.0)


def test_examples_average_their_own_tokens_in_any_order():
    g = torch.Generator().manual_seed(2)
    z0, v = torch.randn(2, 7, 30, generator=g, dtype=torch.float64)
    y, examples = torch.arange(7), torch.tensor([2, 0, 1, 2, 2, 0, 1])
    path = affine_path(z0, v, y, examples=examples, block_tokens=2)
    for i in range(3):
        rows = examples == i
        alone = affine_path(z0[rows], v[rows], y[rows])
        torch.testing.assert_close(path.slope[i], alone.slope, rtol=1e-14, atol=1e-16)
        torch.testing.assert_close(path.value([0.3, 1.0])[i], alone.value([0.3, 1.0]), rtol=1e-14, atol=1e-16)
        torch.testing.assert_close(path.initial_utility[i], alone.initial_utility, rtol=1e-14, atol=0.0)
        torch.testing.assert_close(path.divergence[i], alone.divergence, rtol=1e-13, atol=0.0)


def test_shapes_follow_what_was_asked():
    g = torch.Generator().manual_seed(2)
    z0, v = torch.randn(2, 4, 9, generator=g, dtype=torch.float64)
    one = affine_path(z0, v, [0, 1, 2, 3])
    many = affine_path(z0, v, [0, 1, 2, 3], examples=[0, 0, 1, 1])
    assert one.value(0.5).shape == ()
    assert one.value([0.5]).shape == (1,)
    assert one.utility([0.0, 0.5]).shape == (2,)
    assert many.value(0.5).shape == (2,)
    assert many.derivatives([0.1, 0.2, 0.3], 2).stack.shape == (3, 2, 3)
    assert many.utility([0.0, 0.5]).shape == (2, 2)
    assert many.slope.shape == many.Q.shape == many.gain.shape == (2,)
    assert one.per_token().slope.shape == (4,)
    assert (one.examples, many.examples, one.tokens) == (1, 2, 4)
    survey = one.survey(5, [0.0, 1.0])
    assert (survey.gains.shape, survey.derivatives.shape) == ((5,), (3, 2))


def test_summary_numbers_are_those_of_the_path():
    g = torch.Generator().manual_seed(2)
    z0, v = torch.randn(2, 4, 9, generator=g, dtype=torch.float64)
    path = affine_path(z0, v, [0, 1, 2, 3])
    start = path.derivatives(0.0, 2)
    assert torch.equal(path.slope, start.first)
    assert torch.equal(path.curvature, start.second)
    assert torch.equal(path.Q, 0.5 * start.second)
    assert torch.equal(path.gain, path.value(1.0))
    expected = torch.log_softmax(z0 + 0.3 * v, -1)[range(4), range(4)].mean()
    torch.testing.assert_close(path.utility(0.3), expected)


def test_scales_are_read_in_double_precision():
    z0, v = torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[3.0, -1.0]]).double()
    path = affine_path(z0, v, [0])
    exact = torch.log_softmax(z0 + 0.3 * v, -1)[0, 0] - torch.log_softmax(z0, -1)[0, 0]
    for alpha in (0.3, [0.3], torch.tensor(0.3, dtype=torch.float64)):
        torch.testing.assert_close(path.value(alpha).reshape(()), exact, rtol=1e-14, atol=0.0)


@pytest.fixture
def head():
    g = torch.Generator().manual_seed(12)
    h, h_plus = torch.randn(2, 9, 16, generator=g)
    return h.bfloat16(), h_plus.bfloat16(), torch.randn(50, 16, generator=g).bfloat16(), torch.randn(50, generator=g)


@pytest.mark.parametrize("impl", ["moments", "reference"])
@pytest.mark.parametrize("bias", [True, False])
def test_states_and_head_give_the_same_path_as_their_logits(head, impl, bias):
    h, h_plus, weight, bias_V = head
    y = torch.arange(9) * 5
    offset = bias_V.double() if bias else 0.0
    z0 = h.double() @ weight.double().T + offset
    v = (h_plus.double() - h.double()) @ weight.double().T
    path = affine_path_from_states(h, h_plus, weight, bias_V if bias else None, y, impl=impl, block_tokens=4)
    expected = affine_path(z0, v, y)
    torch.testing.assert_close(
        path.derivatives([0.0, 0.5, 1.0], 4).stack, expected.derivatives([0.0, 0.5, 1.0], 4).stack
    )
    torch.testing.assert_close(path.divergence, expected.divergence)


def test_the_displacement_is_not_rounded_to_the_states_dtype(head):
    h, h_plus, weight, _ = head
    y = torch.arange(9)
    true = affine_path_from_states(h, h_plus, weight, None, y).slope
    rounded = affine_path_from_states(h.double(), h.double() + (h_plus - h).double(), weight, None, y).slope
    in_float32 = affine_path_from_states(h, h_plus, weight, None, y, dtype=torch.float32).slope
    assert abs(float(in_float32 - true)) < 1e-6 < abs(float(rounded - true))


def test_a_certain_target_from_states_keeps_its_slope():
    # The target's logit comes from a row-wise product, the others from a matrix product; they must not mix.
    g = torch.Generator().manual_seed(1)
    h = torch.randn(40, 64, generator=g, dtype=torch.float64)
    weight = 0.01 * torch.randn(30, 64, generator=g, dtype=torch.float64)
    weight[3] = 0.0
    bias = torch.zeros(30, dtype=torch.float64)
    bias[3] = 60.0
    weight[3] = 10.0 * torch.randn(64, generator=g, dtype=torch.float64)
    h = h - (h @ weight[3]).unsqueeze(1) * weight[3] / weight[3].square().sum()
    d = torch.randn(40, 64, generator=g, dtype=torch.float64)
    path = affine_path_from_states(h, h + d, weight, bias, torch.full((40,), 3)).per_token()
    z0 = h @ weight.T + bias
    v = ((h + d) - h) @ weight.T
    p = torch.softmax(z0, -1)
    p[:, 3] = 0.0
    expected = (p * (v[:, 3:4] - v)).sum(-1)
    assert float(path.slope.abs().max()) < 1e-22
    torch.testing.assert_close(path.slope, expected, rtol=1e-9, atol=0.0)


class _Largest(TorchDispatchMode):
    """The largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_states_never_hold_more_than_a_block_of_logits():
    g = torch.Generator().manual_seed(12)
    h, h_plus = torch.randn(2, 300, 2, generator=g)
    weight = torch.randn(300, 2, generator=g)
    with _Largest() as largest:
        path = affine_path_from_states(h, h_plus, weight, None, [0] * 300, block_tokens=10)
        path.derivatives([0.0, 0.5, 1.0], 4)
        path.distributions  # noqa: B018
    assert largest.elements <= 8 * 10 * 300  # z(0) and v side by side, or powers of some of them


def test_autograd_on_stored_logits():
    g = torch.Generator().manual_seed(2)
    z0, v = torch.randn(2, 4, 9, generator=g, dtype=torch.float64)
    paper, closed = (affine_path(z0, v, [0, 1, 2, 3], impl=impl) for impl in ("autograd", "auto"))
    torch.testing.assert_close(paper.curvature, closed.curvature, rtol=1e-13, atol=1e-15)
    with pytest.raises(LoopscopeError, match="0 to 2"):
        paper.derivatives(0.0, 3)
    with pytest.raises(LoopscopeError, match="impl='auto'"):
        paper.envelope()
