"""φ between few scales: exact weights, an error that is measured, and tokens that are swept again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.interpolate import KroghInterpolator

from loopscope.readout import affine_path_from_states
from loopscope.readout.affine.even import EvenScales
from loopscope.readout.affine.fused.launches import FusedHead, Tiles
from loopscope.readout.affine.fused.nodes import ALLOWED, FEW, LEFT_OUT, Nodes, weights
from loopscope.readout.affine.fused.path import fused_survey

AT = (0.0, 0.25, 0.5, 0.75, 1.0)
GRID = EvenScales.of(21, AT)
TILES = Tiles(16, 32, 16, 4, 1)


def conditions(logs, climbs):
    """Masses and their derivatives of tokens whose entries weigh e^{logs + α climbs}, [T, C]."""
    found = [np.exp(logs + k / FEW.cells * climbs).sum(1) for k in FEW.masses]
    for k in FEW.places:
        weight = np.exp(logs + k / FEW.cells * climbs)
        found += [(weight * climbs).sum(1), (weight * climbs**2).sum(1)]
    return np.stack(found, 1)


def errors(logs, climbs):
    """By how much masses on the grid are off, and those that are left out, relative; the largest of each token."""
    found = conditions(logs, climbs) @ np.array(weights(21))
    true = np.stack([np.exp(logs + k / 20 * climbs).sum(1) for k in range(21)], 1)
    left_out = np.stack([np.exp(logs + k / FEW.cells * climbs).sum(1) for k in LEFT_OUT], 1)
    return np.abs(found[:, :21] / true - 1.0).max(1), np.abs(found[:, 21:] / left_out).max(1)


def in_units(z0, z1):
    """Weights of logits as the kernels take them: the likeliest entry of either end weighs 1."""
    logs, ends = z0 - z0.max(1, keepdims=True), z1 - z1.max(1, keepdims=True)
    return logs, ends - logs


def test_weights_are_those_of_hermite_interpolation():
    """SciPy's divided differences with repeated nodes lose digits where the exact weights do not."""
    logs, climbs = np.log(np.array([[1.0, 0.2]])), np.array([[-2.0, 3.0]])
    nodes, values = [], []
    for k in FEW.masses:
        weight = np.exp(logs + k / FEW.cells * climbs)
        for n in range(3 if k in FEW.places else 1):
            nodes.append(k / FEW.cells)
            values.append(float((weight * climbs**n).sum()))
    by_scipy = KroghInterpolator(nodes, values)(np.arange(21) / 20)
    ours = conditions(logs, climbs)[0] @ np.array(weights(21))[:, :21]
    np.testing.assert_allclose(ours, by_scipy, rtol=1e-9)
    np.testing.assert_allclose(ours, np.exp(logs + np.arange(21)[:, None] / 20 * climbs).sum(1), rtol=1e-14)


@pytest.mark.parametrize("count", [17, 21, 25, 33])
def test_polynomials_of_degree_twenty_are_exact(count):
    table, alpha = np.array(weights(count)), np.arange(count) / (count - 1)
    for power in (0, 1, 7, 18, 20):
        known = [(k / FEW.cells) ** power for k in FEW.masses]
        for k in FEW.places:
            at = np.polynomial.Polynomial([0.0] * power + [1.0])
            known += [at.deriv(1)(k / FEW.cells), at.deriv(2)(k / FEW.cells)]
        found = np.array(known) @ table
        np.testing.assert_allclose(found[:count], alpha**power, rtol=0, atol=2e-13)
        # Without two of them the conditions are enough for degree 18.
        assert (np.abs(found[count:]) < 1e-13).all() == (power <= 18)


def test_rounding_hardly_grows():
    """What the masses' own rounding becomes: at most twice as much."""
    table = np.array(weights(21))
    assert np.sqrt((table[: len(FEW.masses), :21] ** 2).sum(0)).max() < 2.0
    assert np.sqrt((table[: len(FEW.masses), 21:] ** 2).sum(0)).max() < 2.0


CASES = {
    "few-likely-entries": (7.2, 0.3, 4000),
    "one-likely-entry": (27.0, 0.3, 4000),
    "longer-steps": (7.2, 1.0, 4000),
    "longer-steps-of-peaked-ones": (15.0, 0.6, 4000),
    "small-vocabulary": (3.0, 2.0, 64),
    "small-vocabulary-far": (10.0, 2.0, 64),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_measured_is_above_what_is_off(case):
    spread, step, vocabulary = CASES[case]
    chance = np.random.default_rng(5)
    z0 = spread * chance.normal(size=(300, vocabulary))
    off, measured = errors(*in_units(z0, z0 + step * spread * chance.normal(size=z0.shape)))
    sure = measured <= ALLOWED
    assert (off[sure] <= measured[sure] + 1e-13).all()
    assert np.median(off[sure] / np.maximum(measured[sure], 1e-12)) < 0.2
    if case == "few-likely-entries":
        assert sure.all()
        assert off.max() < 1e-9


@pytest.mark.parametrize("kind", ["swap", "rise", "fall"])
def test_two_entries(kind):
    """The plainest softmaxes that few scales cannot follow, at every distance."""
    far = np.linspace(0.0, 60.0, 241)
    low, high = np.stack([0 * far, -far], 1), np.stack([0 * far, 0 * far], 1)
    z0, z1 = {"swap": (low, low[:, ::-1]), "rise": (low, high), "fall": (high, low)}[kind]
    off, measured = errors(*in_units(z0, z1))
    assert (off[measured <= ALLOWED] <= ALLOWED).all()
    assert (measured <= ALLOWED)[far < 8.0].all()
    assert not (measured <= ALLOWED)[far > 40.0].any()


def test_which_grids_need_few_scales():
    assert Nodes.fewest(GRID, 2) == FEW
    assert Nodes.fewest(EvenScales.of(33, (0.0, 0.5)), 1).are_few
    for count, at, order in ((21, AT, 3), (20, (), 0), (9, (0.0, 1.0), 2), (21, (0.05,), 2)):
        assert Nodes.fewest(EvenScales.of(count, at), order) == Nodes.every(EvenScales.of(count, at), order)


def surveyed(made, **options):
    h, h_plus, weight, bias, targets = made
    return fused_survey(FusedHead(h, h_plus, weight, bias), targets, GRID, 2, tiles=TILES, splits=2, **options)


def both_kinds(states):
    """Ordinary tokens, and every third with a step that few scales cannot follow."""
    h, h_plus, weight, bias, targets = states(40, 90, 32, scale=3.0, step=0.3, bias=True)
    h_plus[::3] = 6.0 * torch.randn(14, 32, generator=torch.Generator().manual_seed(3)).to(h.dtype)
    return h, h_plus, weight, bias, targets


def test_tokens_that_few_scales_cannot_follow_are_swept_again(states):
    made = both_kinds(states)
    few, every = surveyed(made), surveyed(made, every_scale=True)
    again = few.again_T.bool()
    assert again[::3].any()
    assert not again[torch.arange(40) % 3 > 0].any()
    assert not every.again_T.any()
    torch.testing.assert_close(few.gains_TK[~again], every.gains_TK[~again], rtol=0, atol=2e-6)
    torch.testing.assert_close(few.gains_TK[again], every.gains_TK[again], rtol=0, atol=2e-5)
    for found, true in zip(few.derivatives, every.derivatives, strict=True):
        torch.testing.assert_close(found, true, rtol=1e-5, atol=3e-6 * float(true.abs().max()))


def entries(high, rising, steady):
    """States whose likely entries are one that falls from `high`, one that rises to `rising`, and a steady one."""
    h, h_plus, weight = torch.zeros(8, 16), torch.zeros(8, 16), torch.zeros(40, 16)
    weight[3, 0], weight[7, 1], weight[10:, 2], weight[5, 3] = 1.0, 1.0, -1.0, 1.0
    h[:, 0], h_plus[:, 1] = high, rising
    h[:, 2], h_plus[:, 2] = 400.0, 400.0
    h[:, 3], h_plus[:, 3] = steady, steady
    return *(x.bfloat16() for x in (h, h_plus, weight)), None, torch.full((8,), 3)


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")  # NumPy's, for the interpreter
@pytest.mark.parametrize("logits", [(50.0, 40.0, 0.0), (400.0, 400.0, 0.0), (0.0, 400.0, 400.0), (640.0, 0.0, 640.0)])
def test_nothing_that_is_no_number_is_left(logits):
    """Masses that underflow between the scales that are summed, and ratios that overflow."""
    h, h_plus, weight, _, targets = entries(*logits)
    made = {"examples": list(range(8))}
    found = affine_path_from_states(h, h_plus, weight, None, targets, dtype=torch.float32, **made).survey(21, AT)
    true = affine_path_from_states(h, h_plus, weight, None, targets, dtype=torch.float64, **made).survey(21, AT)
    assert found.gains.isfinite().all()
    assert found.derivatives.isfinite().all()
    torch.testing.assert_close(found.gains, true.gains, rtol=1e-5, atol=2e-4)
    torch.testing.assert_close(found.derivatives[1], true.derivatives[1], rtol=1e-5, atol=1e-3)


def test_a_token_swept_again_does_not_depend_on_the_others(states, monkeypatch):
    """Alone, beside others, and in rounds of a few."""
    made = both_kinds(states)
    whole = surveyed(made)
    chosen = whole.again_T.nonzero()[:, 0]
    h, h_plus, weight, bias, targets = made
    alone = surveyed((h[chosen].contiguous(), h_plus[chosen].contiguous(), weight, bias, targets[chosen]))
    assert torch.equal(alone.gains_TK, whole.gains_TK[chosen])
    monkeypatch.setattr("loopscope.readout.affine.fused.again.ROOM", 4)
    assert torch.equal(surveyed(made).gains_TK, whole.gains_TK)
