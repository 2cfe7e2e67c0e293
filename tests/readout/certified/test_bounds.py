"""Bounds that hold between the nodes: curvature, third derivative, C(1), safe scale, regret; solutions and options."""

from typing import Any

import numpy as np
import pytest
import torch
from flint import arb, ctx

from loopscope.measuring.update import predicted_scale
from loopscope.readout import affine_path_from_states, option_path
from loopscope.readout.affine.envelope import cell_bounds
from loopscope.readout.certified.balls import enclose_in_balls
from loopscope.readout.certified.intervals import Interval
from loopscope.readout.certified.tokens import moments, relative_logits
from loopscope.readout.certified.update import CELLS, States, UpdateEnclosures, enclose_update
from loopscope.readout.options import OptionGroups
from tests.readout.certified import paths

FINE = 4096


def test_cells_hold_the_derivatives_between_their_ends():
    chance = np.random.default_rng(1)
    for number in range(35):
        given = paths.case(number)
        target = torch.tensor([given.target])
        logits = relative_logits(given.before_1D, given.after_1D, given.weight_VD, given.bias_V, target)
        nodes = moments(logits, torch.arange(CELLS + 1, dtype=torch.float64)[None] / CELLS)
        cells = cell_bounds(nodes, logits.spread_t, 1.0 / CELLS, lambda parts: parts, Interval.point)
        alpha = float(chance.uniform())
        cell = min(int(alpha * CELLS), CELLS - 1)
        third = float(cells.third[0, cell])
        enclosed = {
            "curvature": (-float(cells.curvature_high[0, cell]), -float(cells.curvature_low[0, cell])),
            "third": (-third, third),
        }

        def true(truth: Any, alpha: float = alpha) -> dict[str, arb]:
            return dict(zip(("curvature", "third"), truth.higher(alpha), strict=True))

        assert paths.violations(given, true, enclosed) == [], number


def update(seed: int, *, options: bool, moved: float) -> tuple[States, Any]:
    """Four sequences of a few tokens each, alone or as two questions with two options."""
    torch.manual_seed(seed)
    counts = torch.tensor([3, 4, 2, 3])
    before, step = torch.randn(12, 48), moved * torch.randn(12, 48)
    weight = torch.randn(300, 48).mul(0.3).bfloat16()
    before, after = before.bfloat16(), (before + step).bfloat16()
    targets = torch.randint(0, 300, (12,))
    question, right = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 2])
    groups = OptionGroups.of(question, right, 4, before.device) if options else None
    sequences = torch.tensor([2, 2]) if options else torch.ones(4, dtype=torch.int64)
    path = affine_path_from_states(
        before, after, weight, None, targets, dtype=torch.float64, examples=torch.repeat_interleave(counts)
    )
    joint = option_path(path, question, right) if options else path
    return States(before, after, weight, None, targets, counts, groups, sequences), joint


def enclosed(states: States) -> UpdateEnclosures:
    return enclose_update(states, predicted_scale, 1 << 21)


@pytest.mark.parametrize("moved", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("options", [False, True])
def test_bounds_hold_on_a_fine_grid(options: bool, moved: float):
    for seed in range(4):
        states, path = update(seed, options=options, moved=moved)
        found = enclosed(states)
        bounds = found.bounds
        fine = [k / FINE for k in range(FINE + 1)]
        phi, slope, curvature = path.derivatives(fine, 2).stack
        deviation = (curvature - curvature[:, :1]).abs()
        integral = (deviation[:, 1:] + deviation[:, :-1]).sum(1) / (2 * FINE)
        # The trapezoid rule is off by some h² |φ''''|/12 and a kink of |g|; far below how wide the bounds are.
        assert (bounds.C.low <= integral * (1 + 1e-5) + 1e-14).all()
        assert (integral <= bounds.C.high * (1 + 1e-5)).all()
        assert (-curvature <= bounds.L_D[:, None] * (1 + 1e-12) + 1e-15).all()
        line = slope[:, :1] + curvature[:, :1] * torch.tensor(fine, dtype=torch.float64)
        assert ((slope - line).abs() <= bounds.residual[:, None] + 1e-14).all()
        best = phi.amax(1)
        assert (best - path.at(found.scale, 0).value <= bounds.regret + 1e-14).all()
        for row in (slope[:, 0] > 0).nonzero()[:, 0].tolist():
            scale, gain = float(bounds.safe_scale[row]), float(bounds.safe_gain[row])
            assert 0 < scale <= 1
            reached = torch.tensor(fine) <= scale
            assert (phi[row, reached][1:] > 0).all()
            scales = torch.zeros(len(slope), dtype=torch.float64).index_fill_(0, torch.tensor([row]), scale)
            assert float(path.at(scales, 0).value[row]) >= gain > 0
        assert bounds.safe_scale[slope[:, 0] <= 0].isnan().all()


@pytest.mark.parametrize("options", [False, True])
def test_balls_lie_inside_the_enclosures_of_whole_questions(options: bool):
    """The second stage and the first are independent but for the states; whole questions, joint options."""
    for seed in range(6):
        states, _ = update(seed, options=options, moved=10.0 ** -(seed - 1))
        found = enclosed(states)
        ends = np.cumsum([0, 3, 4, 2, 3])
        questions = [(0, 2, 1), (2, 4, 0)] if options else [(k, k + 1, None) for k in range(4)]
        for number, (first, last, right) in enumerate(questions):
            rows, sequences = slice(int(ends[first]), int(ends[last])), states.tokens_R[first:last]
            of_tokens = (states.before_ND[rows], states.after_ND[rows], states.weight_VD, None, states.targets_N[rows])
            groups = None if right is None else OptionGroups.of([0, 0], [right], 2, torch.device("cpu"))
            one = States(*of_tokens, sequences, groups, torch.tensor([last - first]))
            balls = enclose_in_balls(one, (0.25, float(found.scale[number])))
            for name, ends_of_ball in balls.items():
                interval = getattr(found, name)
                assert float(interval.low[number]) <= ends_of_ball.low, name
                assert ends_of_ball.high <= float(interval.high[number]), name


def test_an_update_that_moves_nothing_is_exactly_zero():
    states, _ = update(0, options=False, moved=0.0)
    found = enclosed(states)
    for name in ("slope", "quadratic", "gain", "quarter_gain", "predicted_gain", "prediction"):
        interval = getattr(found, name)
        assert interval.low.tolist() == interval.high.tolist() == [0.0] * 4, name


def test_logits_that_all_move_alike_are_exactly_zero_in_balls():
    """A displacement that the head sees as a shift of all logits: float64 leaves it open, exact logits do not."""
    torch.manual_seed(2)
    weight = torch.randn(50, 8)
    weight[:, 0] = 0.3  # float32, not a short fraction: products with it are rounded in a sum
    before = torch.randn(2, 8)
    after = before.clone()
    after[:, 0] += 0.7
    states = States(before, after, weight, None, torch.tensor([3, 4]), torch.tensor([2]), None, torch.tensor([1]))
    balls = enclose_in_balls(states, (0.25, 0.5))
    assert balls["gain"] == balls["slope"] == balls["quadratic"] == (0.0, 0.0)


def test_enclosures_are_narrow_on_typical_logits():
    """A and ΔU within 1e-10 of the absolute values of their terms, at the sizes of a real head."""
    torch.manual_seed(6)
    tokens, width, vocabulary = 24, 2048, 20_000
    before = torch.randn(tokens, width).bfloat16()
    after = (before.float() + 0.2 * torch.randn(tokens, width)).bfloat16()
    weight = torch.randn(vocabulary, width).mul(0.04).bfloat16()
    targets = torch.randint(0, vocabulary, (tokens,))
    one = torch.ones(tokens, dtype=torch.int64)
    found = enclosed(States(before, after, weight, None, targets, one, None, one))
    z0, z1 = (state.double() @ weight.double().T for state in (before, after))
    t = (z1 - z1.gather(1, targets[:, None])) - (z0 - z0.gather(1, targets[:, None]))
    terms = (torch.softmax(z0, 1) * t.abs()).sum(1)
    for interval in (found.slope, found.gain):
        assert float(((interval.high - interval.low) / terms).max()) <= 1e-10
    with ctx.workprec(100):
        assert float(found.slope.high.max()) > float(found.slope.low.min())
