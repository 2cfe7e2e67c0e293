import pytest

from loopscope.report import sentences
from loopscope.stats import Estimate, Interval


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.500"),
        (-12.345, "−12.3"),
        (1234.6, "1235"),
        (0.0009996, "1×10⁻³"),
        (-2e-7, "−2×10⁻⁷"),
        (123456.0, "1.23×10⁵"),
    ],
)
def test_numbers_have_three_digits(value, text):
    assert sentences.number(value) == text


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.1, 0.3, "more likely"), (-0.3, -0.1, "less likely"), (-0.1, 0.3, "not clear"), (0.0, 0.3, "not clear")],
)
def test_a_gain_is_called_by_its_interval(low, high, said):
    assert said in sentences.of_gain(Estimate(0.2, 10, Interval(low, high)), "it", "solution")


def test_a_gain_without_an_interval_is_not_called_anything():
    assert "Too few" in sentences.of_gain(Estimate(0.2, 1), "it", "options")


@pytest.mark.parametrize(
    ("finite", "harmful", "said"),
    [(0, 0, "None of the 9"), (0, 3, "none of these starts"), (1, 3, "1 of these starts"), (2, 3, "2 of these start ")],
)
def test_shares_in_words(finite, harmful, said):
    assert said in sentences.of_share(finite, harmful, 9)


def test_accuracy_is_held_against_a_coin():
    assert "not clearly better" in sentences.of_accuracy(Estimate(0.55, 40, Interval(0.4, 0.7)), "A")
    assert ": better than" in sentences.of_accuracy(Estimate(0.9, 40, Interval(0.8, 1.0)), "A")


def test_a_decline_names_both_depths():
    assert "By depth 6 it has clearly fallen below what depth 4 had reached" in sentences.of_decline(4, (4, 6), 8)
    assert "still the last depth" in sentences.of_decline(8, None, 8)
