"""One matrix for the back ends of any device: every one against log-softmax, the reference and the paper's way."""

from __future__ import annotations

import pytest
import torch

from loopscope import LoopscopeError, affine_path, affine_path_from_states
from loopscope.readout.affine.path import IMPLEMENTATIONS

GRID = [k / 20 for k in range(21)]
SCALES = {"even": GRID, "uneven": [0.1, 0.35, 0.9], "fine": [k / 256 for k in range(257)], "ends": [0.0, 1.0]}
HERE = [name for name in IMPLEMENTATIONS if name not in ("kernel", "auto")]


def _logits(size=1.0):
    g = torch.Generator().manual_seed(3)
    z0, v = (torch.randn(9, 37, generator=g, dtype=torch.float64) for _ in range(2))
    return 3.0 * z0, size * v, list(range(9))


@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES)
def test_every_back_end_gives_what_log_softmax_and_autograd_give(scales):
    z0, v, y = _logits()
    z = z0 + torch.tensor(scales, dtype=torch.float64)[:, None, None] * v
    exact = (torch.log_softmax(z, -1) - torch.log_softmax(z0, -1))[:, range(9), y].mean(1)
    paper = affine_path(z0, v, y, impl="autograd").derivatives(scales, 2)
    for impl in HERE:
        found = affine_path(z0, v, y, impl=impl).derivatives(scales, 2)
        torch.testing.assert_close(found.value, exact, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(found.stack, paper.stack, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("size", [1e-9, 0.3, 30.0, 1000.0])
def test_moments_are_the_references_for_displacements_of_every_size(size, scales):
    z0, v, y = _logits(size)
    v[:, 5] += 3.0 * size
    z0[:3, 4] += 40.0
    found, exact = (
        affine_path(z0, v, y, impl=impl).per_token().derivatives(SCALES[scales], 4).stack
        for impl in ("moments", "reference")
    )
    torch.testing.assert_close(found[2], exact[2], rtol=1e-11, atol=0.0)
    for order in (0, 1, 3, 4):
        largest = float(exact[order].abs().max())
        assert float((found[order] - exact[order]).abs().max()) <= 1e-12 * largest, order


@pytest.mark.parametrize("impl", HERE)
def test_a_survey_is_the_reference_asked_one_by_one(impl):
    (z0, v, y), examples = _logits(), [0, 0, 0, 1, 1, 2, 2, 2, 2]
    exact = affine_path(z0, v, y, examples=examples, impl="reference")
    for count, at, order in ((21, [0.0, 0.5], 2), (2, [], 0)):
        found = affine_path(z0, v, y, examples=examples, impl=impl).survey(count, at, order)
        torch.testing.assert_close(found.gains, exact.value(found.alpha.tolist()), rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(found.initial, exact.initial_utility, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(found.distributions, exact.distributions, rtol=1e-11, atol=1e-13)
        expected = exact.derivatives(at, order).stack if at else torch.zeros(1, 3, 0, dtype=torch.float64)
        torch.testing.assert_close(found.derivatives, expected, rtol=1e-11, atol=1e-13)


def test_a_path_says_which_back_end_answered():
    for impl in (*HERE, "auto"):
        path = affine_path(*_logits(), impl=impl)
        path.survey(5, (0.0,), 2)
        assert path.backends_used == {"moments" if impl == "auto" else impl}


def test_a_back_end_that_cannot_be_had_says_why():
    z0, v, y = _logits()
    with pytest.raises(LoopscopeError, match="impl='kernel' cannot be had here: it needs a CUDA device"):
        affine_path(z0, v, y, impl="kernel").survey()
    h, head = torch.zeros(2, 4, dtype=torch.bfloat16), torch.zeros(5, 4, dtype=torch.bfloat16)
    with pytest.raises(LoopscopeError, match="impl='auto' takes what can be had"):
        assert affine_path_from_states(h, h, head, None, [0, 1], impl="kernel").slope
    with pytest.raises(LoopscopeError, match="'moments', 'reference', 'autograd'"):
        affine_path(z0, v, y, impl="even")
