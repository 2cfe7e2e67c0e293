"""The fused survey against float64, and beside plain float32."""

from __future__ import annotations

import pytest
import torch

from loopscope.readout import affine_path_from_states
from loopscope.readout.affine.even import EvenScales
from loopscope.readout.affine.fused.launches import FusedHead, Tiles
from loopscope.readout.affine.fused.path import fused_survey

AT = (0.0, 0.25, 0.5, 0.75, 1.0)
SHAPES = {
    "even": (16, 64, 32),
    "ragged": (21, 75, 48),
    "one-tile": (3, 9, 16),
    "many-tiles": (17, 200, 16),
}
TILES = {
    "narrow": Tiles(16, 32, 16, 4, 1),
    "wide": Tiles(16, 64, 16, 4, 1),
}


def run(made, count=21, at=AT, order=2, **options):
    h, h_plus, weight, bias, targets = made
    options = {"tiles": TILES["narrow"], "splits": 3} | options
    return fused_survey(
        FusedHead(h, h_plus, weight, bias), targets, EvenScales.of(count, at), order, extremes=True, **options
    )


def exact(made, count=21, at=AT, order=2):
    h, h_plus, weight, bias, targets = made
    path = affine_path_from_states(
        h, h_plus, weight, bias, targets, examples=list(range(len(targets))), dtype=torch.float64, impl="reference"
    )
    return path.survey(count, at, order, spread=True)


def fields(found):
    return {
        "gains": found.gains_TK,
        "first": found.derivatives[1],
        "second": found.derivatives[2],
        "initial": found.initial_T,
        "spread": found.spread_T,
        **{
            name: getattr(found.distributions, name)
            for name in (
                "divergence",
                "reverse_divergence",
                "initial_entropy",
                "final_entropy",
                "entropy_change",
            )
        },
    }


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_errors_are_those_of_float32(states, plain, named, shape, tiles):
    made = states(*SHAPES[shape], bias=shape == "ragged")
    true = named(exact(made))
    by_hand = plain(*made, 21, AT)
    for name, found in fields(run(made, tiles=TILES[tiles])).items():
        ours, theirs = (float((x.double() - true[name]).abs().max()) for x in (found, by_hand[name]))
        size = float(true[name].abs().max())
        assert ours <= 3.0 * theirs + 3e-7 * max(1.0, size), (name, ours, theirs)


@pytest.mark.parametrize("scale", [6.0, 15.0])
def test_peaked_softmaxes(states, plain, named, scale):
    made = states(24, 90, 32, scale=scale, step=0.3)
    true = named(exact(made))
    by_hand = plain(*made, 21, AT)
    for name, found in fields(run(made)).items():
        ours, theirs = (float((x.double() - true[name]).abs().max()) for x in (found, by_hand[name]))
        assert ours <= 3.0 * theirs + 1e-6 * max(1.0, float(true[name].abs().max())), (name, ours, theirs)


def test_a_certain_reference_keeps_its_digits(states):
    """The label's own entry is what everything is measured from: its weight is exactly 1."""
    h, h_plus, weight, _, _ = states(8, 40, 32)
    targets = torch.arange(8)
    weight[:8] = 8.0 * h / 32**0.5
    made = (h, h_plus.copy_(h * 1.01), weight, None, targets)
    found, true = run(made), exact(made)
    assert float(true.initial.max()) > -1e-6
    torch.testing.assert_close(found.initial_T, true.initial, rtol=1e-3, atol=1.2e-7)
    torch.testing.assert_close(found.derivatives[2], true.derivatives[2], rtol=1e-3, atol=1e-9)


def test_a_likely_entry_at_the_end_keeps_the_digits_of_the_others(states):
    """Its displacement becomes the centre at once: about any other the variance would cancel."""
    h, h_plus, weight, _, targets = states(8, 180, 32)
    weight[-8:] = 3.0 * h / 32**0.5
    made = (h, h_plus.copy_(h * 1.01), weight, None, targets % 100)
    found, true = run(made, splits=1), exact(made)
    assert float(true.derivatives[2].abs().max()) < 1e-3
    torch.testing.assert_close(found.derivatives[2], true.derivatives[2], rtol=1e-3, atol=1e-10)


@pytest.mark.parametrize("count", [2, 3, 6, 21, 33])
def test_every_grid(states, count):
    made = states(5, 70, 16)
    found, true = run(made, count, (0.0, 1.0), 1), exact(made, count, (0.0, 1.0), 1)
    torch.testing.assert_close(found.gains_TK, true.gains, rtol=1e-5, atol=3e-6)
    torch.testing.assert_close(found.derivatives, true.derivatives, rtol=1e-5, atol=3e-6)
    assert (found.gains_TK[:, 0] == 0).all()


def test_no_bit_depends_on_the_order_of_the_programs(states):
    """One block of tokens after the other, two at a time, all together."""
    made = states(40, 60, 128)
    orders = [Tiles(16, 32, 16, 4, 1, group=2), Tiles(16, 32, 16, 4, 1), Tiles(16, 32, 16, 4, 1, group=1)]
    first, *others = (fields(run(made, 4, (0.0, 1.0), tiles=tiles, splits=2)) for tiles in orders)
    true = exact(made, 4, (0.0, 1.0))
    torch.testing.assert_close(first["gains"], true.gains, rtol=1e-5, atol=3e-6)
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_four_derivatives(states):
    made = states(9, 80, 32)
    found, true = run(made, order=4), exact(made, order=4)
    for order in range(5):
        size = float(true.derivatives[order].abs().max())
        torch.testing.assert_close(found.derivatives[order], true.derivatives[order], rtol=0, atol=2e-6 * size)


def test_float16_states(states):
    made = states(9, 80, 32, dtype=torch.float16)
    torch.testing.assert_close(run(made).gains_TK, exact(made).gains, rtol=0, atol=2e-6)


def test_repeated_bit_for_bit(states):
    made = states(20, 150, 32)
    one, other = run(made), run(made)
    assert all(torch.equal(x, y) for x, y in zip(fields(one).values(), fields(other).values(), strict=True))


def test_how_the_vocabulary_is_cut_hardly_matters(states):
    made = states(20, 150, 32)
    whole = run(made).gains_TK
    for splits in (1, 2, 5):
        torch.testing.assert_close(run(made, splits=splits).gains_TK, whole, rtol=0, atol=2e-6)


def test_chunks_of_tokens(states, monkeypatch):
    made = states(20, 60, 16)
    whole = run(made)
    monkeypatch.setattr("loopscope.readout.affine.fused.path.CHUNK", 16)
    for one, other in zip(fields(whole).values(), fields(run(made)).values(), strict=True):
        assert torch.equal(one, other)


def test_derivatives_in_any_order(states):
    made = states(7, 40, 16)
    asked = (1.0, 0.0, 1.0)
    torch.testing.assert_close(run(made, at=asked).derivatives, exact(made, at=asked).derivatives, rtol=0, atol=1e-5)


def test_values_alone(states):
    made = states(7, 40, 16)
    found = run(made, 2, (), 0, ends=False)
    assert found.derivatives.shape == (1, 7, 0)
    torch.testing.assert_close(found.gains_TK, exact(made, 2, (), 0).gains, rtol=0, atol=2e-6)
