"""Oracles bound rules, costs by hand, thresholds meet their target, and the whole comparison is quick."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from control_synthetic import Made

from loopscope.api import measure_with
from loopscope.control import FixedDepth, FixedScale, ScaledReadout, Taps
from loopscope.control.comparison import (
    coefficients,
    compare,
    curves,
    depth_ceilings,
    fitted_scales,
    published,
    shuffled_gain,
    step_ceilings,
)
from loopscope.control.offline import Costs, fit, follow, random_permutation, score
from loopscope.control.policies import RULES, exit_rule
from loopscope.control.trace import SCALES, Line, LineValues, Trace, halves
from loopscope.errors import LoopscopeError

MADE = Made(questions=40)
TRACE = Trace.of(MADE.frame())
OPTIONS = Made(questions=12, options=3)
CHOICE = Trace.of(OPTIONS.frame(), {row: row % 3 for row in range(12)})


def ceilings(trace: Trace, depth: int = 4) -> dict[str, np.ndarray]:
    found = [*depth_ceilings(trace), *step_ceilings(trace, depth)]
    return {entry.name.removeprefix("oracle: "): entry.result.utility_Q for entry in found}


def split(made: Made) -> tuple[Trace, Trace]:
    train, test = (Trace.of(half) for half in halves(made.frame()))
    return train, test


def test_the_best_depth_bounds_every_exit_rule() -> None:
    best = ceilings(TRACE)["best depth by token"]
    for rule in published(TRACE):
        for quantile in (2.0, 3.0, 4.0):
            fitted = fit(rule, TRACE, quantile)
            assert (score(follow(fitted, TRACE), TRACE).utility_Q <= best + 1e-12).all(), rule.name


@pytest.mark.parametrize("scale", SCALES)
def test_five_scales_bound_every_scale_and_the_endpoint(scale: float) -> None:
    found = ceilings(TRACE)
    fixed = score(follow(FixedScale(scale, 4, stop=True), TRACE), TRACE).utility_Q
    for per in ("token", "question"):
        assert (fixed <= found[f"five scales by {per}"] + 1e-12).all()
        assert (found[f"endpoint by {per}"] <= found[f"five scales by {per}"] + 1e-12).all()
    expected = MADE.log_prob(4, scale) if scale else MADE.log_prob(3)
    np.testing.assert_allclose(fixed, expected.reshape(40, 7).mean(1), rtol=1e-6)


def test_a_scale_between_the_recorded_ones_is_interpolated() -> None:
    """The quadratic oracle's scales lie anywhere; φ there follows from five points of a smooth path."""
    A, Q = coefficients(TRACE, 6)
    scale = np.clip(-A / (2 * Q), 0, 1)
    z0, z1 = MADE.logits(5), MADE.logits(6)
    exact = (z0 + torch.from_numpy(scale)[:, None] * (z1 - z0)).log_softmax(-1).gather(1, MADE.targets[:, None])[:, 0]
    exact_q = exact.reshape(40, 7).mean(1).numpy()
    np.testing.assert_allclose(ceilings(TRACE, 6)["quadratic by token"], exact_q, atol=2e-4)


def test_coefficients_are_the_derivatives_of_the_path() -> None:
    alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
    z0, z1 = MADE.logits(3), MADE.logits(4)
    for row in (0, 11):
        value = (z0[row] + alpha * (z1 - z0)[row]).log_softmax(-1)[MADE.targets[row]]
        (slope,) = torch.autograd.grad(value, alpha, create_graph=True)
        (second,) = torch.autograd.grad(slope, alpha)
        A, Q = (column[row] for column in coefficients(TRACE, 4))
        assert slope.item() == pytest.approx(A, rel=1e-5)
        assert second.item() / 2 == pytest.approx(Q, rel=1e-5)


def test_utility_and_accuracy_of_options_by_hand() -> None:
    log_prob = OPTIONS.log_prob(3).numpy()
    scores = log_prob.reshape(12, 3, 7).mean(2)
    right = np.arange(12) % 3
    expected = scores[np.arange(12), right] - np.log(np.exp(scores).sum(1))
    result = score(follow(FixedDepth(3), CHOICE), CHOICE)
    np.testing.assert_allclose(result.utility_Q, expected, rtol=1e-6)
    np.testing.assert_array_equal(result.accuracy_Q, scores.argmax(1) == right)
    assert "best depth by token" not in ceilings(CHOICE)


def test_costs_by_hand() -> None:
    """A check of Huginn's size: 0.69 of a loop, 1.18 loops outside."""
    costs = Costs(outside=1.18, check=0.69)
    fixed = score(follow(FixedDepth(4), TRACE), TRACE, costs)
    assert fixed.cost_Q == pytest.approx(np.full(40, 1.18 + 4))
    assert fixed.loops_Q == pytest.approx(np.full(40, 4))
    assert score(follow(FixedScale(0.0, 4, stop=True), TRACE), TRACE, costs).cost_Q == pytest.approx(1.18 + 4)
    free = follow(exit_rule("latent difference", 0.4), TRACE)
    assert not free.checks_R.any()
    # KL at loop t reads t − 1 and t, each once; with a floor of 2 the first question comes after loop 2.
    exits = follow(exit_rule("KL", 0.2), TRACE)
    assert exits.checks_R.tolist() == (exits.depth_R - 1).tolist()  # the last readout is the answer's
    dear = score(exits, TRACE, costs)
    by_hand = 1.18 + exits.depth_R * 1.69 - 0.69
    np.testing.assert_allclose(dear.cost_Q, by_hand.reshape(40, 7).mean(1))
    late = follow(exit_rule("KL", 0.2, earliest=4), TRACE)
    assert late.checks_R.tolist() == (late.depth_R - 3).tolist()  # after loop 4 it reads 3 and 4


def test_random_exits_have_the_histogram_and_the_expected_utility() -> None:
    exits = follow(exit_rule("KL", 0.2), TRACE)
    expected = random_permutation(exits, TRACE)
    generator, draws = np.random.default_rng(0), []
    for _ in range(400):
        depth_R = exits.depth_R[generator.permutation(len(TRACE))]
        draws.append(TRACE.utility(TRACE.columns["log_prob"][np.arange(len(TRACE)), depth_R - 1].astype(float)).mean())
    assert expected.utility_Q.mean() == pytest.approx(np.mean(draws), abs=4 * np.std(draws) / 20)
    assert expected.loops_Q.mean() == pytest.approx(exits.depth_R.mean())


@pytest.mark.parametrize("rule", RULES)
def test_a_fitted_threshold_is_the_dearest_within_the_target(rule: str) -> None:
    costs, target = Costs(0.1, 0.1), 3.9
    fitted = fit(RULES[rule], TRACE, target, costs)
    cost = score(follow(fitted, TRACE), TRACE, costs).cost_Q.mean()
    assert cost <= target + 1e-9
    if rule == "argmax stability":  # its thresholds are whole numbers, and the next one is beyond the target
        assert fitted.threshold == 1
        dearer = follow(dataclasses.replace(fitted, threshold=2), TRACE)
        assert score(dearer, TRACE, costs).cost_Q.mean() > target
    else:
        assert cost > target - 0.15


def test_the_null_of_independent_noise_is_the_oracle_itself() -> None:
    """Shuffling independent noise changes nothing; where rows differ in kind, the oracle is above."""
    generator = np.random.default_rng(1)
    noise, ones = generator.normal(size=(4000, 5)), np.ones(4000)
    headroom = noise.max(1).mean() - noise.mean(0).max()
    assert shuffled_gain(noise, ones) == pytest.approx(headroom, rel=0.1)
    kinds = np.where(np.arange(4000)[:, None] % 2, [1.0, 0, 0, 0, -1.0], [-1.0, 0, 0, 0, 1.0]) + 0.01 * noise
    assert kinds.max(1).mean() - kinds.mean(0).max() > 1.1 * shuffled_gain(kinds, ones)


def test_fitting_never_looks_at_the_test_questions() -> None:
    train, test = split(MADE)
    assert not set(train.ids) & set(test.ids)
    assert len(train) == len(test) == len(TRACE) / 2
    other = Trace.of(halves(MADE.frame().with_columns(pl.col("entropy") * 2))[1])
    first, second = compare(train, test), compare(train, other)
    fitted = [[entry.policy for entry in found.tested if entry.kind == "rule"] for found in (first, second)]
    assert fitted[0] == fitted[1]
    assert len(fitted[0]) == len(list(published(TRACE)))


def test_what_a_trace_cannot_answer_is_said() -> None:
    with pytest.raises(LoopscopeError, match="reads states"):
        follow(Taps(), TRACE)
    with pytest.raises(LoopscopeError, match="moves states"):
        follow(FixedScale(0.5, 2), TRACE)
    with pytest.raises(LoopscopeError, match="no gains inside the step 0→1"):
        score(follow(FixedScale(0.5, 1, stop=True), TRACE), TRACE)
    with pytest.raises(LoopscopeError, match="hold no trace"):
        Trace.of(MADE.frame().clear())
    with pytest.raises(LoopscopeError, match="does not have every loop"):
        Trace.of(MADE.frame()[1:])


def along(made: Made, trace: Trace, depth: int, direction: str, omega: float) -> np.ndarray:
    """Log probabilities of a trace's positions at z + omega · u."""
    z1, z0 = made.logits(depth), made.logits(depth - 1)
    z = z1 + omega * (z1 - z0 if direction == "chord" else z1)
    rows = np.isin(np.array([f"q{i // made.tokens}" for i in range(len(made.targets))]), trace.ids)
    return z.log_softmax(-1).gather(1, made.targets[:, None])[:, 0].numpy()[rows]


def with_lines(made: Made, trace: Trace, depth: int) -> Trace:
    omegas = np.linspace(-1, 1, 41)
    lines = {
        Line(direction, reference, depth): LineValues(
            omegas, np.stack([along(made, trace, depth, direction, omega) for omega in omegas], 1)
        )
        for direction, reference in (("chord", depth - 1), ("temperature", None))
    }  # type: ignore[misc]
    return dataclasses.replace(trace, lines=lines)


def test_a_scaled_readout_is_fitted_and_read_between_the_points_of_its_line() -> None:
    train, test = (with_lines(MADE, trace, 4) for trace in split(MADE))
    found = {entry.name: entry for entry in compare(train, test, costs=Costs(0.1, 0.1)).tested}
    fitted = found["scaled 3>4"].policy
    assert isinstance(fitted, ScaledReadout)
    grid = np.linspace(-1, 1, 41)
    worth = [along(MADE, train, 4, "chord", omega).mean() for omega in grid]
    assert fitted.omega == pytest.approx(grid[np.argmax(worth)])
    margin_R = train.signal("margin", 4)
    chord = train.lines[Line("chord", 3, 4)]
    worth = [chord.at(cap * (1 - margin_R)).mean() for cap in grid]
    assert found["margin-scaled 3>4"].policy.omega == pytest.approx(grid[np.argmax(worth)])  # type: ignore[union-attr]
    assert found["scaled 3>4"].result.cost_Q == pytest.approx(0.1 + 4 + 0.1)
    assert found["temperature at 4"].result.cost_Q == pytest.approx(0.1 + 4)
    between = follow(ScaledReadout(4, 3, 0.3141), test)
    np.testing.assert_allclose(between.log_prob_R, along(MADE, test, 4, "chord", 0.3141), atol=1e-6)
    with pytest.raises(LoopscopeError, match="omega must be from -1 to 1"):
        follow(ScaledReadout(4, 3, 1.2), test)
    with pytest.raises(LoopscopeError, match=r"does not hold logits beyond loop 3 \(chord from 2\)"):
        follow(ScaledReadout(3, 2, 0.5), test)


def test_the_fitted_scale_by_hand() -> None:
    """Fitted on the one half, its gain on the other over the full step, over the temperature and at equal cost."""
    train, test = (with_lines(MADE, trace, 4) for trace in split(MADE))
    depths = [np.stack([part.utility(part.log_prob(t)) for t in range(1, 7)], 1) for part in (train, test)]
    found = fitted_scales(curves(train, test), *depths, Costs(0.1, 0.1))
    worth = {}
    for name, direction in (("chord 3>4", "chord"), ("temperature at 4", "temperature")):
        omegas = np.linspace(-1, 1, 41)
        best = max(omegas, key=lambda omega: along(MADE, train, 4, direction, omega).mean())
        worth[name] = along(MADE, test, 4, direction, best).mean()
        assert found[name]["fitted"].value() == pytest.approx(1 + best)
        assert found[name]["gain"].value() == pytest.approx(worth[name] - test.log_prob(4).mean())
    chord = found["chord 3>4"]
    assert chord["over_temperature"].value() == pytest.approx(worth["chord 3>4"] - worth["temperature at 4"])
    assert chord["next_loop"].value() == pytest.approx(test.log_prob(5).mean() - test.log_prob(4).mean())
    assert (chord["cost"], found["temperature at 4"]["cost"]) == pytest.approx((4.2, 4.1))
    means = depths[0].mean(0)
    ends = [int(np.argmax(means[:depth])) for depth in (4, 5)]
    line = 0.9 * depths[1][:, ends[0]] + 0.1 * depths[1][:, ends[1]]
    assert chord["over_line"].value() == pytest.approx(worth["chord 3>4"] - line.mean())


def test_the_line_between_fixed_depths_by_hand() -> None:
    train, test = split(MADE)
    found = compare(train, test, costs=Costs(0.5, 0.25))
    means = [score(follow(FixedDepth(depth), train), train).utility_Q.mean() for depth in range(1, 7)]
    for entry in found.tested:
        if entry.kind != "rule":
            continue
        place = entry.result.cost_Q.mean() - 0.5
        low = min(int(place), 5)
        ends = [int(np.argmax(means[:depth])) + 1 for depth in (low, low + 1)]
        at = [test.utility(test.log_prob(end)) for end in ends]
        share = min(place, 6) - low
        np.testing.assert_allclose(entry.others["line"], (1 - share) * at[0] + share * at[1], atol=1e-12)


def test_two_policies_from_a_stored_trace_by_plain_polars(tmp_path: Path) -> None:
    """Ouro's gate at 0.6 and the KL rule at 0.05 with its cost, without any code of `control`."""
    run = measure_with(
        "toy-ouro", "arithmetic:test", transitions=[4], depths="1-5", trace=True, limit=4, output=tmp_path / "run",
    )  # fmt: skip
    table = run.trace.collect().sort("row", "token", "depth")
    token = ["row", "token"]
    continues = (1 - pl.col("gate")).cum_prod().over(token)
    tests = {
        "Ouro gate": (1 - continues) >= 0.6,
        "KL": (pl.col("depth") >= 2) & (pl.col("kl_from_previous") < 0.05).fill_null(False),
    }
    trace = Trace.of(run.trace.collect())
    for name, stops in tests.items():
        exits = table.filter(stops | (pl.col("depth") == 5)).group_by(token, maintain_order=True).first()
        checks = pl.col("depth") - 1 if name == "KL" else pl.lit(0)
        by_question = exits.group_by("row", maintain_order=True).agg(
            pl.col("log_prob").cast(pl.Float64).mean(), cost=(0.3 + pl.col("depth") + 0.2 * checks).mean()
        )
        threshold = 0.6 if name == "Ouro gate" else 0.05
        found = score(follow(exit_rule(name, threshold), trace), trace, Costs(0.3, 0.2))
        np.testing.assert_allclose(found.utility_Q, by_question["log_prob"], atol=1e-9)
        np.testing.assert_allclose(found.cost_Q, by_question["cost"], atol=1e-9)
        assert len(exits["depth"].unique()) > 1
