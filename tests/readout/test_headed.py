"""A readout given as body and head: the same numbers, a few tokens at a time, and no run more than is needed."""

from __future__ import annotations

import pytest
import torch

from loopscope._errors import LoopscopeError
from loopscope.readout import headed, nonlinear_path
from loopscope.readout.taylor import Series

TOKENS, HIDDEN, VOCABULARY = 50, 6, 11
POSITIONS = torch.stack([torch.arange(TOKENS) % 5, torch.arange(TOKENS) // 5], 1)


class Headed:
    """tanh of a mixed state, then a matrix; it remembers what it was asked."""

    vocabulary = VOCABULARY

    def __init__(self):
        g = torch.Generator().manual_seed(2)
        self.mix = torch.randn(HIDDEN, HIDDEN, generator=g, dtype=torch.float64)
        self.weight = torch.randn(VOCABULARY, HIDDEN, generator=g, dtype=torch.float64)
        self.bodies, self.heads = [], []

    def body(self, state, positions):
        self.bodies.append(type(state))
        return torch.tanh(state @ self.mix)[positions[:, 0], positions[:, 1]]

    def head(self, hidden):
        self.heads.append(hidden.shape[0])
        return torch.nn.functional.linear(hidden, self.weight)

    def __call__(self, state, positions):
        return self.head(self.body(state, positions))


@pytest.fixture
def readout():
    return Headed()


def path_of(readout):
    g = torch.Generator().manual_seed(3)
    state, displacement = torch.randn(2, 5, 10, HIDDEN, generator=g, dtype=torch.float64)
    targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=g)
    return nonlinear_path(readout, state, displacement, targets, POSITIONS, examples=POSITIONS[:, 0].sort().values)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
def test_blocks_give_what_the_whole_gives(readout, monkeypatch, order):
    monkeypatch.setitem(headed._ELEMENTS, "cpu", (order + 1) * VOCABULARY * 20)
    blocked, whole = path_of(readout), path_of(lambda state, positions: Headed()(state, positions))
    torch.testing.assert_close(
        blocked.derivatives([0.0, 0.4], order).stack, whole.derivatives([0.0, 0.4], order).stack, rtol=1e-12, atol=1e-15
    )
    assert 20 in readout.heads
    assert max(readout.heads) <= 20 * (order + 1)
    torch.testing.assert_close(blocked.initial_utility, whole.initial_utility, rtol=1e-13, atol=0.0)


def test_a_block_has_as_many_tokens_as_fit(readout, monkeypatch):
    monkeypatch.setitem(headed._ELEMENTS, "cpu", 4 * VOCABULARY * 20)
    state = torch.zeros(5, 10, HIDDEN, dtype=torch.float64)
    assert [block.rows for block in headed.logit_blocks(readout, state, POSITIONS, 4)] == [
        slice(0, 20),
        slice(20, 40),
        slice(40, 50),
    ]


def test_coefficients_at_the_start_need_one_pass_of_the_series(readout):
    path_of(readout).derivatives(0.0, 3)
    assert readout.bodies == [Series]


def test_the_utility_at_the_start_needs_one_plain_pass(readout):
    path = path_of(readout)
    assert path.initial_utility.shape == (5,)
    assert path.value([0.0, 1.0]).shape == (5, 2)
    assert readout.bodies == [torch.Tensor] * 2


def test_a_plain_readout_runs_once_for_the_start():
    readout = Headed()
    path = path_of(lambda state, positions: readout(state, positions))
    assert path.initial_utility.shape == (5,)
    assert path.derivatives(0.0, 2).order == 2
    assert readout.bodies == [torch.Tensor, Series]


def test_every_other_way_takes_the_same_readout(readout):
    g = torch.Generator().manual_seed(3)
    state, displacement = torch.randn(2, 5, 10, HIDDEN, generator=g, dtype=torch.float64)
    paths = [
        nonlinear_path(readout, state, displacement, torch.zeros(TOKENS, dtype=torch.int64), POSITIONS, impl=impl)
        for impl in ("taylor", "nested", "autograd")
    ]
    taylor, nested, autograd = (path.derivatives(0.0, 2).stack for path in paths)
    torch.testing.assert_close(taylor, nested, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(taylor, autograd, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("which", ["mix", "weight"])
def test_logits_that_are_not_finite_are_refused(readout, which):
    getattr(readout, which)[0, 0] = torch.nan
    path = path_of(readout)
    with pytest.raises(LoopscopeError, match="NaN or infinite values in the readout's logits"):
        path.value(1.0)
    with pytest.raises(LoopscopeError, match="NaN or infinite values in the derivatives"):
        path.derivatives(0.0, 2)
