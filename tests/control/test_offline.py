"""Oracles bound rules, costs by hand, thresholds meet their target, and the whole comparison is quick."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import polars as pl
import pytest
import torch
from control_synthetic import Made

from loopscope.control.comparison import (
    coefficients,
    compare,
    depth_ceilings,
    published,
    shuffled_gain,
    split_by_question,
    step_ceilings,
)
from loopscope.control.offline import Costs, Exits, fit, follow, same_histogram, score
from loopscope.control.policy import Decision, Seen
from loopscope.control.rules import RULES, exit_rule, fixed_depth, fixed_scale, substeps
from loopscope.control.trace import SCALES, Trace
from loopscope.errors import LoopscopeError

MADE = Made(questions=40)
TRACE = Trace.of(MADE.frame())
OPTIONS = Made(questions=12, options=3)
CHOICE = Trace.of(OPTIONS.frame(), {row: row % 3 for row in range(12)})


def ceilings(trace: Trace, depth: int = 4) -> dict[tuple[str, str], np.ndarray]:
    found = [*depth_ceilings(trace), *step_ceilings(trace, depth)]
    return {(entry.name, entry.per): entry.utility_Q for entry in found}


def test_the_best_depth_bounds_every_exit_rule() -> None:
    best = ceilings(TRACE)[("best depth", "token")]
    for rule in published(TRACE):
        for quantile in (2.0, 3.0, 4.0):
            fitted = fit(rule, TRACE, quantile)
            assert (score(follow(fitted, TRACE), TRACE).utility_Q <= best + 1e-12).all(), rule.name


@pytest.mark.parametrize("scale", SCALES)
def test_five_scales_bound_every_scale_and_the_endpoint(scale: float) -> None:
    found = ceilings(TRACE)
    fixed = score(follow(fixed_scale(scale, 4, stop=True), TRACE), TRACE).utility_Q
    for per in ("token", "question"):
        assert (fixed <= found[("five scales", per)] + 1e-12).all()
        assert (found[("endpoint", per)] <= found[("five scales", per)] + 1e-12).all()
    expected = MADE.log_prob(4, scale) if scale else MADE.log_prob(3)
    np.testing.assert_allclose(fixed, expected.reshape(40, 7).mean(1), rtol=1e-6)


def test_a_scale_between_the_recorded_ones_is_interpolated() -> None:
    """The quadratic oracle's scales lie anywhere; φ there follows from five points of a smooth path."""
    A, Q = coefficients(TRACE, 6)
    scale = np.clip(-A / (2 * Q), 0, 1)
    z0, z1 = MADE.logits(5), MADE.logits(6)
    exact = (z0 + torch.from_numpy(scale)[:, None] * (z1 - z0)).log_softmax(-1).gather(1, MADE.targets[:, None])[:, 0]
    exact_q = exact.reshape(40, 7).mean(1).numpy()
    np.testing.assert_allclose(ceilings(TRACE, 6)[("quadratic", "token")], exact_q, atol=2e-4)


def test_a_random_scale_of_every_token_stays_below_five_scales() -> None:
    class Guess:
        name, earliest, signals = "guess", 4, ()

        def start(self, rows: int) -> np.ndarray:
            return np.random.default_rng(0).choice(SCALES, rows)

        def decide(self, seen: Seen, memory: np.ndarray) -> Decision:
            return Decision(seen.depth == 4, memory)

    found = score(follow(Guess(), TRACE), TRACE).utility_Q
    assert (found <= ceilings(TRACE)[("five scales", "token")] + 1e-12).all()


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
    result = score(follow(fixed_depth(3), CHOICE), CHOICE)
    np.testing.assert_allclose(result.utility_Q, expected, rtol=1e-6)
    np.testing.assert_array_equal(result.accuracy_Q, scores.argmax(1) == right)
    assert ("best depth", "token") not in ceilings(CHOICE)


def test_costs_by_hand() -> None:
    """A check of Huginn's size: 0.69 of a loop, 1.18 loops outside."""
    costs = Costs(outside=1.18, check=0.69)
    fixed = score(follow(fixed_depth(4), TRACE), TRACE, costs)
    assert fixed.cost_Q == pytest.approx(np.full(40, 1.18 + 4))
    assert fixed.loops_Q == pytest.approx(np.full(40, 4))
    assert score(follow(fixed_scale(0.0, 4, stop=True), TRACE), TRACE, costs).cost_Q == pytest.approx(1.18 + 4)
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
    expected = same_histogram(exits, TRACE)
    generator, draws = np.random.default_rng(0), []
    for _ in range(400):
        order = generator.permutation(len(TRACE))
        draws.append(score(Exits(exits.depth_R[order], exits.scale_R, exits.checks_R), TRACE).utility_Q.mean())
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
    train, test = split_by_question(TRACE)
    assert not set(train.ids) & set(test.ids)
    spoiled = pl.concat([MADE.frame().with_columns(pl.col("entropy") * 2)])
    other = Trace.of(spoiled).some(range(1, 40, 2))
    first, second = compare(train, test), compare(train, other)
    fitted = [[entry.policy for entry in found.tested if entry.kind == "rule"] for found in (first, second)]
    assert fitted[0] == fitted[1]
    assert len(fitted[0]) == len(list(published(TRACE)))


def test_some_of_the_questions_are_those_questions() -> None:
    kept = TRACE.some([3, 17])
    both = score(follow(fixed_depth(2), TRACE), TRACE).utility_Q[[3, 17]]
    np.testing.assert_array_equal(score(follow(fixed_depth(2), kept), kept).utility_Q, both)
    options = CHOICE.some([1, 5, 7])
    np.testing.assert_array_equal(
        score(follow(fixed_depth(2), options), options).utility_Q,
        score(follow(fixed_depth(2), CHOICE), CHOICE).utility_Q[[1, 5, 7]],
    )


def test_what_a_trace_cannot_answer_is_said() -> None:
    with pytest.raises(LoopscopeError, match="acts on states"):
        follow(substeps(), TRACE)
    with pytest.raises(LoopscopeError, match="no gains inside the step 0→1"):
        score(follow(fixed_scale(0.5, 1, stop=True), TRACE), TRACE)
    with pytest.raises(LoopscopeError, match="hold no trace"):
        Trace.of(MADE.frame().clear())
    with pytest.raises(LoopscopeError, match="does not have every loop"):
        Trace.of(MADE.frame()[1:])


@pytest.mark.slow
def test_twenty_policies_over_the_size_of_gsm8k_take_seconds() -> None:
    """1,319 questions, 8 loops, some 130 tokens each: fitted, tested, ceilings and all."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(60, 200, 1319)
    question_R = np.repeat(np.arange(1319), tokens)
    rows = len(question_R)
    names = ("state_norm", "step_norm", "state_cosine", "acceleration", "step_cosine", "gate", "top_prob", "margin")
    names += ("entropy", "kl_from_previous", "kl_to_previous", "kl_min_p", "mean_v", "var_v", "v_reference")
    columns = {
        name: generator.random((rows, 8), dtype=np.float32) for name in (*names, "gain_25", "gain_50", "gain_75")
    }
    columns["log_prob"] = np.log(columns["top_prob"] + 1e-6)
    columns["top_id"] = generator.integers(0, 3, (rows, 8))
    frame = pl.DataFrame(
        {
            "row": np.repeat(question_R, 8).astype(np.int32),
            "example_id": np.repeat(question_R, 8).astype(str),
            "option": np.zeros(rows * 8, dtype=np.int32),
            "token": np.repeat(np.concatenate([np.arange(n) for n in tokens]), 8),
            "token_id": np.repeat(generator.integers(0, 3, rows), 8),
            "depth": np.tile(np.arange(1, 9), rows),
            **{name: column.ravel() for name, column in columns.items()},
        }
    )
    start = time.process_time()
    train, test = split_by_question(Trace.of(frame))
    found = compare(train, test, costs=Costs(0.08, 0.08), update=5)
    seconds = time.process_time() - start
    assert len([entry for entry in found.tested if entry.kind != "ceiling"]) >= 20
    assert seconds < 20, f"{seconds:.1f} s of processor time"
    print(f"{len(found.tested)} policies and ceilings over {rows:,} positions: {seconds:.1f} s")
