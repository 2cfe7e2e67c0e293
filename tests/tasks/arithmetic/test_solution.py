import pytest

from loopscope.tasks.arithmetic.solution import answer_of


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("14 + 9 = 23\nAnswer: 23", 23),
        ("Answer: 7\nAnswer: 8", 8),
        ("Answer:  412 and more", 412),
        ("Answer: -3", -3),
        ("Answer: none", None),
        ("23", None),
        ("", None),
    ],
)
def test_answer_of(text, answer):
    assert answer_of(text) == answer
