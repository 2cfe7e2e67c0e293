"""The joint option utility: exact composition of the options' own paths, cross-option terms included."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from loopscope.readout import (
    affine_path,
    autograd_coefficients,
    chord_curvature,
    nonlinear_path,
    option_path,
)
from loopscope.readout.options import OptionGroups, grouped_option_utility


@pytest.fixture
def questions():
    """Three questions with 4, 2 and 1 options, of one to three tokens each."""
    g = torch.Generator().manual_seed(31)
    lengths = [1, 3, 2, 2, 1, 2, 3]
    examples = torch.arange(7).repeat_interleave(torch.tensor(lengths))
    z0, v = 2.0 * torch.randn(2, 14, 9, generator=g, dtype=torch.float64)
    y = torch.randint(0, 9, (14,), generator=g)
    return z0, v, y, examples, torch.tensor([0, 0, 0, 0, 1, 1, 2]), torch.tensor([2, 5, 6])


def _joint(path_of):
    return lambda questions: option_path(path_of(questions), questions[4], questions[5])


def _affine(questions):
    z0, v, y, examples, *_ = questions
    return affine_path(z0, v, y, examples=examples)


def _nonlinear(questions):
    z0, v, y, examples, *_ = questions
    return nonlinear_path(lambda z: z, z0, v, y, examples=examples)


def _exact_utility(questions, question):
    z0, v, y, examples, owner, correct = questions

    def utility(alpha):
        scores = {}
        for option in torch.nonzero(owner == question)[:, 0].tolist():
            total = mpmath.mpf(0)
            rows = torch.nonzero(examples == option)[:, 0].tolist()
            for row in rows:
                z = [
                    mpmath.mpf(a) + alpha * mpmath.mpf(b)
                    for a, b in zip(z0[row].tolist(), v[row].tolist(), strict=True)
                ]
                total += z[int(y[row])] - mpmath.log(sum(mpmath.exp(x) for x in z))
            scores[option] = total / len(rows)
        return scores[int(correct[question])] - mpmath.log(sum(mpmath.exp(s) for s in scores.values()))

    return utility


@pytest.mark.parametrize("path_of", [_affine, _nonlinear])
def test_all_derivatives_agree_with_mpmath(questions, path_of):
    path = _joint(path_of)(questions)
    alpha = 0.375
    found = path.derivatives(alpha, 4).stack
    with mpmath.workdps(50):
        for question in range(3):
            utility = _exact_utility(questions, question)
            exact = mpmath.taylor(utility, mpmath.mpf(alpha), 4)
            start = utility(mpmath.mpf(0))
            assert float(path.initial_utility[question]) == pytest.approx(float(start), rel=1e-12, abs=1e-30)
            expected = [exact[0] - start, *(c * math.factorial(k) for k, c in enumerate(exact) if k)]
            for k, value in enumerate(expected):
                assert float(found[k, question]) == pytest.approx(float(value), rel=1e-12, abs=1e-13), (k, question)


def test_one_option_is_certain(questions):
    path = _joint(_affine)(questions)
    assert float(path.derivatives([0.0, 0.6, 1.0], 4).stack[:, 2].abs().max()) == 0.0
    assert float(path.initial_utility[2]) == 0.0


def test_the_joint_path_need_not_be_concave():
    # The wrong option's score is concave, so the right one's advantage can be convex.
    z0 = torch.tensor([[0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    v = torch.tensor([[0.0, 0.0], [-8.0, 0.0]], dtype=torch.float64)
    path = option_path(affine_path(z0, v, [0, 0], examples=[0, 1]), correct=0)
    second = path.derivatives(torch.linspace(0, 1, 21), 2).second
    assert float(second.max()) > 0.0


def test_the_hessian_vector_product_of_the_joint_utility_agrees(questions):
    z0, v, y, examples, owner, correct = questions
    counts = torch.bincount(examples)

    def utility(z):
        tokens = torch.log_softmax(z, -1)[range(14), y]
        scores = torch.zeros(7, dtype=torch.float64).index_add(0, examples, tokens) / counts
        return grouped_option_utility(scores, OptionGroups.of(owner, correct, 7, z.device))

    path = _joint(_affine)(questions)
    found = autograd_coefficients(utility, z0, v, owner[examples], 3)
    torch.testing.assert_close(found.utility, path.initial_utility, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(found.slope, path.slope, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found.curvature, path.curvature, rtol=1e-12, atol=1e-14)
    chord = chord_curvature(lambda z: utility(z)[0], z0, v * (owner[examples] == 0).unsqueeze(1))
    torch.testing.assert_close(chord, path.curvature[0], rtol=1e-12, atol=1e-14)


def test_tiny_gains_keep_their_relative_accuracy():
    g = torch.Generator().manual_seed(5)
    z0 = torch.randn(3, 6, generator=g, dtype=torch.float64)
    v = 1e-9 * torch.randn(3, 6, generator=g, dtype=torch.float64)
    path = option_path(affine_path(z0, v, [0, 1, 2], examples=[0, 1, 2]), correct=1)
    questions = (z0, v, torch.tensor([0, 1, 2]), torch.arange(3), torch.zeros(3, dtype=torch.int64), torch.tensor([1]))
    with mpmath.workdps(50):
        utility = _exact_utility(questions, 0)
        exact = utility(mpmath.mpf(1)) - utility(mpmath.mpf(0))
    assert float(path.gain) == pytest.approx(float(exact), rel=1e-13, abs=0.0)


def test_options_may_be_listed_in_any_order(questions):
    z0, v, y, examples, owner, correct = questions
    order = torch.tensor([3, 6, 0, 5, 2, 4, 1])
    place = torch.argsort(order)
    shuffled = affine_path(z0, v, y, examples=place[examples])
    moved = option_path(shuffled, owner[order], place[correct])
    straight = _joint(_affine)(questions)
    torch.testing.assert_close(moved.derivatives([0.2, 1.0], 4).stack, straight.derivatives([0.2, 1.0], 4).stack)
