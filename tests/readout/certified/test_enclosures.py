"""Enclosures of random and adversarial updates hold the truth; the same check finds a bound that is wrong."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from flint import arb

from loopscope.measuring.update import predicted_scale
from loopscope.readout.certified import tokens
from loopscope.readout.certified.intervals import Interval
from loopscope.readout.certified.update import States, UpdateEnclosures, enclose_update
from tests.readout.certified import paths

FEW = 56  # every kind in every dtype, twice
ALL = 10_000


def enclosures(given: Any) -> UpdateEnclosures:
    one = torch.ones(1, dtype=torch.int64)
    head, target = (given.weight_VD, given.bias_V), torch.tensor([given.target])
    states = States(given.before_1D, given.after_1D, *head, target, one, None, one)
    return enclose_update(states, predicted_scale, 1 << 21)


def violations(numbers: range) -> Iterator[str]:
    """Every quantity of every case whose truth is not inside its enclosure."""
    for number in numbers:
        given = paths.case(number)
        enclosed = enclosures(given)
        ends = {name: (float(x.low), float(x.high)) for name, x in vars(enclosed).items() if isinstance(x, Interval)}

        def true(truth: Any, scale: float = float(enclosed.scale)) -> dict[str, arb]:
            slope, curvature = truth.derivatives()
            return {
                "utility": truth.log_p(),
                "slope": slope,
                "quadratic": curvature / 2,
                "prediction": slope + curvature / 2,
                "gain": truth.gain(1.0),
                "quarter_gain": truth.gain(0.25),
                "predicted_gain": truth.gain(scale),
            }

        yield from (f"case {number}, {line}" for line in paths.violations(given, true, ends))


def test_arb_lies_inside_every_enclosure():
    assert list(violations(range(FEW))) == []


def test_entries_whose_squares_underflow_have_an_error():
    """Displacements of 1e-170 move logits by 1e-187; a norm of zero would certify that nothing moved."""
    weight_VD = torch.zeros(3, 3, dtype=torch.float64)
    weight_VD[0] = torch.tensor([1.0, 1e-17, -1.0])
    before_1D = torch.zeros(1, 3, dtype=torch.float64)
    for target in range(3):
        for head, after in ((weight_VD, 1e-170), (1e-170 * weight_VD, 1.0)):
            given = paths.Case("underflow", before_1D, torch.full_like(before_1D, after), head, None, target)
            enclosed = enclosures(given)
            true = {"slope": lambda truth: truth.derivatives()[0], "gain": lambda truth: truth.gain(1.0)}
            for name, exact in true.items():
                interval = getattr(enclosed, name)
                ends = {name: (float(interval.low), float(interval.high))}
                assert paths.violations(given, lambda truth, n=name, f=exact: {n: f(truth)}, ends) == []


@pytest.mark.slow
def test_arb_lies_inside_every_enclosure_of_all_the_cases():
    assert list(violations(range(FEW, ALL))) == []


@pytest.mark.parametrize("wrong", ["gamma", "weight_error", "relative_logits"])
def test_a_wrong_bound_is_caught(wrong: str, monkeypatch: pytest.MonkeyPatch):
    right = getattr(tokens, wrong)

    def without_logits_error(*given: object) -> tokens.RelativeLogits:
        logits = right(*given)
        logits.s_error_t.zero_()
        logits.t_error_t.zero_()
        return logits

    replacements = {
        "gamma": lambda roundings: 0.0,
        "weight_error": lambda logits, alpha: torch.zeros_like(right(logits, alpha)),
        "relative_logits": without_logits_error,
    }
    for module in ("tokens", "update"):
        monkeypatch.setattr(f"loopscope.readout.certified.{module}.{wrong}", replacements[wrong], raising=False)
    assert next(violations(range(24, 60)), None) is not None
