import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.report.evaluation_set import sets_of
from loopscope.report.tokens import STEPS, Precision, TokenTable, quantised, utf16_offsets


@given(st.text(max_size=40))
def test_offsets_are_those_of_utf16(text):
    units = utf16_offsets(text) or list(range(len(text) + 1))
    assert units == [len(text[:end].encode("utf-16-le")) // 2 for end in range(len(text) + 1)]


@given(st.lists(st.floats(-100, 100, width=32), min_size=20, max_size=20))
def test_eight_bits_are_within_half_a_step(values):
    grid = np.array([[0.0, *values]], dtype=np.float32)
    step, differences = quantised(grid)
    again = differences.cumsum(axis=-1, dtype=np.int8).astype(np.float64) * step[:, None]
    assert np.abs(again - grid).max() <= 0.501 * np.abs(grid).max() / STEPS + 1e-12


@pytest.fixture(scope="module")
def data(tmp_path_factory, synthetic, choices):
    run = synthetic.write_run(tmp_path_factory.mktemp("tokens") / "run", choices)
    return sets_of(run)[0]


def test_tokens_are_grouped_by_question_and_option(data):
    table = TokenTable.of(data, Precision.EXACT)
    arrays = table.arrays(slice(3, 5))
    assert arrays["token_counts"].tolist() == [9, 9]
    assert arrays["token_option"].tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 3] * 2
    assert arrays["token_gain"].shape == (2, 18)
    assert arrays["token_grid"].shape == (2, 18, 21)


def test_spans_after_a_wide_character_are_moved(data):
    arrays = TokenTable.of(data, Precision.EXACT).arrays(slice(0, 1))
    green = arrays["token_option"] == 2
    assert arrays["token_start"][green].tolist() == [0, 6, 9]
    assert arrays["token_end"][green].tolist() == [6, 9, 13]


def test_compact_tokens_keep_their_full_step_exact(data):
    exact, compact = (TokenTable.of(data, precision) for precision in (Precision.EXACT, Precision.COMPACT))
    one, other = exact.arrays(slice(0, 4)), compact.arrays(slice(0, 4))
    assert np.array_equal(one["token_gain"], other["token_gain"])
    again = other["token_steps"].cumsum(axis=-1, dtype=np.int8) * other["token_scale"][..., None]
    assert np.abs(again - one["token_grid"]).max() < np.abs(one["token_grid"]).max() / 200


def test_too_many_tokens_keep_their_ends(data):
    arrays = TokenTable.of(data, Precision.ENDS).arrays(slice(0, 4))
    assert "token_grid" not in arrays
    assert "token_steps" not in arrays
