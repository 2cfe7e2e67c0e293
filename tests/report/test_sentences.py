import pytest

from loopscope.report.overview import of_decline
from loopscope.report.question import number


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
    assert number(value) == text


def test_a_decline_names_both_depths():
    assert "By depth 6 it has clearly fallen below what depth 4 had reached" in of_decline(4, (4, 6), 8)
    assert "still the last depth" in of_decline(8, None, 8)
