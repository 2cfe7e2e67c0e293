"""Costs fitted to timed batches: known ones come back, and the error of the fit is that of the timings."""

from __future__ import annotations

import numpy as np
import pytest

from loopscope.measuring.batch_costs import AnswerSize, BatchSize, Fit, GroupSize, Size, Timed, left_out_error, spread

SIZES = [
    BatchSize(2, 40, 30),
    BatchSize(2, 700, 900),
    BatchSize(8, 90, 80),
    BatchSize(8, 200, 700),
    BatchSize(2, 320, 400),
    BatchSize(64, 150, 4000),
    BatchSize(32, 1500, 9000),
]


@pytest.mark.parametrize(
    "costs",
    [(0.05, 0, 0, 0), (0.05, 2e-5, 0, 0), (0.02, 2e-5, 6e-5, 0), (0.1, 3e-5, 0, 4e-8), (0.1, 3e-5, 1e-4, 4e-8)],
)
def test_known_costs_come_back(costs: tuple[float, ...]) -> None:
    groups: list[Size] = [GroupSize([size, size._replace(width=size.width - 3)]) for size in SIZES]
    seconds = [float(np.dot(group.terms, costs)) for group in groups]
    found = Fit.of(groups, seconds)
    assert [found.batch, found.token, found.scored, found.pair] == pytest.approx(costs, rel=1e-6)
    assert found.seconds(SIZES) == pytest.approx([float(np.dot(size.terms, costs)) for size in SIZES])
    assert left_out_error([Timed(groups, seconds)]) < 1e-6


def test_tasks_with_few_scored_tokens_cost_less() -> None:
    """Half of the timed batches score every token, half of them none: one cost for a token cannot tell them apart."""
    sizes: list[Size] = [BatchSize(4, width, scored) for width in (50, 100, 200, 400) for scored in (0, 4 * width)]
    seconds = [0.01 + 1e-5 * size.terms[1] + 3e-5 * size.terms[2] for size in sizes]
    fit = Fit.of(sizes, seconds)
    few, many = fit.seconds([BatchSize(4, 300, 0), BatchSize(4, 300, 1200)])
    assert (few, many) == pytest.approx((0.022, 0.058))


def test_timings_that_scatter_say_so() -> None:
    draw = np.random.default_rng(3)
    sizes: list[Size] = [BatchSize(2, int(width)) for width in draw.integers(50, 500, size=40)]
    times = np.array([0.02 + 1e-4 * size.terms[1] for size in sizes]) * np.exp(0.1 * draw.standard_normal(40))
    assert 0.07 < left_out_error([Timed(sizes, times.tolist())]) < 0.15
    whole = float(Fit.of(sizes, times).seconds(sizes).sum())
    assert whole == pytest.approx(times.sum(), rel=1e-6), "single errors average out"


def test_one_timing_has_a_rate_and_no_error() -> None:
    fit = Fit.of([BatchSize(2, 100)], [0.5])
    assert float(fit.seconds([BatchSize(2, 100)])[0]) == pytest.approx(0.5)
    assert np.isnan(left_out_error([Timed([BatchSize(2, 100)], [0.5])]))


def test_own_answers_cost_by_their_steps() -> None:
    sizes: list[Size] = [AnswerSize(rows, 50, steps) for rows in (1, 8) for steps in (10, 100)]
    seconds = [0.03 * size.terms[0] + 1e-3 * size.terms[1] for size in sizes]
    assert float(Fit.of(sizes, seconds).seconds([AnswerSize(4, 50, 60)])[0]) == pytest.approx(60 * 0.03 + 0.24)


def test_any_beginning_of_the_order_stands_for_the_whole() -> None:
    order = list(spread([1.0] * 100))
    assert sorted(order) == list(range(100))
    assert max(np.diff(sorted(order[:9]))) <= 13
    draw = np.random.default_rng(5)
    weights = np.sort(np.exp(draw.standard_normal(400)))
    order = list(spread(weights.tolist()))
    assert sorted(order) == list(range(400))
    mean = np.dot(weights, weights) / weights.sum()  # of the weight of a place that a random part of the whole is in
    assert np.mean([weights[place] for place in order[:15]]) == pytest.approx(mean, rel=0.1)


def test_batches_of_one_size_cost_by_their_tokens() -> None:
    """They cannot tell what a batch costs from what its tokens cost, and those to come may be larger."""
    fit = Fit.of([BatchSize(8, 100)] * 3, [1.0, 1.01, 0.99])
    assert float(fit.seconds([BatchSize(32, 100)])[0]) == pytest.approx(4.0, rel=0.01)
