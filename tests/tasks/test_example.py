import pytest

from loopscope.errors import LoopscopeError
from loopscope.tasks.encoding import Example, Sequence


def test_target_must_follow_its_position():
    with pytest.raises(ValueError, match="position 0 does not predict token 9"):
        Sequence((1, 2, 3), (0,), (9,))


def test_last_token_predicts_nothing():
    with pytest.raises(ValueError, match="position 2"):
        Sequence((1, 2, 3), (2,), (3,))


def test_nothing_to_predict_is_refused():
    with pytest.raises(LoopscopeError, match="no token to predict"):
        Sequence((1, 2), (), ())


def test_answer_must_be_an_option():
    option = Sequence((1, 2), (0,), (2,))
    with pytest.raises(LoopscopeError, match="x: the answer index 2 is not one of its 2 options"):
        Example("x", 0, "", (option, option), answer=2)


def test_prediction_count_sums_the_options():
    assert (
        Example("x", 0, "", (Sequence((1, 2, 3), (0, 1), (2, 3)), Sequence((1, 2), (0,), (2,)))).prediction_count == 3
    )
