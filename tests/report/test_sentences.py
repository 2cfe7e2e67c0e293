import pytest

from loopscope.report import sentences


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


def finding(**changes):
    counts = {"update": "4→5", "kind": "solution", "questions": 64, "harmful": 58, "failures": 26, "predicted": 26}
    return sentences.Finding(**counts | {"quarter": 16} | changes)


@pytest.mark.parametrize(
    ("changes", "title", "said"),
    [
        ({}, "m: loop 4→5 goes too far on 26 of 64 questions", "in 26 of these 58 (44.8%) the direction was right"),
        ({"failures": 0}, "m: loop 4→5 goes the wrong way on 58 of 64 questions", "none of these updates starts"),
        ({"harmful": 0, "failures": 0}, "m: loop 4→5 harms no question", "makes none of the 64 references less"),
        ({"kind": "options"}, "m: loop 4→5 goes too far", "the right option less likely for 58 of 64 questions"),
    ],
)
def test_a_finding_in_words(changes, title, said):
    found = finding(**changes)
    assert found.title("m").startswith(title)
    assert said in found.sentence()
    assert found.sentence().endswith(".")
    assert found.meaning().count(". ") == 1


@pytest.mark.parametrize(
    ("won", "said"), [(26, "gained in all 26."), (3, "gained in 3 of them."), (0, "none of them.")]
)
def test_a_finding_says_what_the_predicted_step_wins_back(won, said):
    assert finding(predicted=won).sentence().endswith(said)


def test_a_quick_run_does_not_know_what_the_predicted_step_wins_back():
    assert finding(predicted=None).sentence().endswith("the step too long.")


def test_a_decline_names_both_depths():
    assert "By depth 6 it has clearly fallen below what depth 4 had reached" in sentences.of_decline(4, (4, 6), 8)
    assert "still the last depth" in sentences.of_decline(8, None, 8)
