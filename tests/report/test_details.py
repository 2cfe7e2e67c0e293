import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.path import quadratic_root
from loopscope.report.details import CHUNK, STEPS, Details, Precision, TokenTable, quantised, utf16_offsets
from loopscope.report.evaluation_set import sets_of
from loopscope.report.pack import unpack


@pytest.fixture(scope="module")
def data(tmp_path_factory, synthetic, riddles):
    return sets_of(synthetic.write_run(tmp_path_factory.mktemp("details") / "run", riddles))[0]


@pytest.fixture(scope="module")
def chunk(data):
    arrays, _ = unpack(next(iter(Details.of(data, None, paths=True).chunks())))
    return arrays


def test_grids_are_the_stored_ones(chunk, riddles):
    grid = chunk["grid"].reshape(2, 30, 21)
    for at in range(2):
        np.testing.assert_array_equal(grid[at], riddles.grid(at).astype(np.float32))


def test_roots_are_those_of_the_quadratic(chunk, riddles):
    np.testing.assert_allclose(chunk["root"].reshape(2, 30), quadratic_root(riddles.A, riddles.Q), rtol=1e-6)


def test_safe_range_ends_where_the_corollary_says(chunk, riddles):
    bound = np.maximum(np.maximum(-2 * riddles.Q, -2 * riddles.Q - 6 * riddles.R), 0)
    expected = np.where(riddles.A > 0, np.minimum(1, 2 * riddles.A / bound), np.nan)
    np.testing.assert_allclose(chunk["safe_end"].reshape(2, 30), expected, rtol=1e-6)


def test_crossings_bracket_the_first_negative_gain(chunk, riddles):
    low, high = (chunk[name].reshape(2, 30) for name in ("crossing_low", "crossing_high"))
    for at in range(2):
        negative = (riddles.grid(at) < 0).any(axis=1)
        assert np.array_equal(np.isfinite(low[at]), negative)
        np.testing.assert_allclose((high - low)[at][negative], 0.05, atol=1e-6)


def test_stored_paths_go_along(chunk, riddles):
    path = chunk["path"].reshape(2, 30, 257)
    np.testing.assert_allclose(path[1, :, 128], riddles.path(1, 0.5), rtol=1e-6)


def test_chunks_cover_every_question_once(tmp_path, synthetic):
    questions = [synthetic.Question(f"q {row}", ["a"]) for row in range(2 * CHUNK + 3)]
    made = synthetic.Made(questions, tokens=False)
    details = Details.of(sets_of(synthetic.write_run(tmp_path / "run", made))[0], None, paths=False)
    utilities = [unpack(packed)[0]["utility"] for packed in details.chunks()]
    assert [len(values) // 6 for values in utilities] == [CHUNK, CHUNK, 3]
    np.testing.assert_array_equal(np.concatenate(utilities), made.utility.astype(np.float32).ravel())


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
def options(tmp_path_factory, synthetic, choices):
    run = synthetic.write_run(tmp_path_factory.mktemp("tokens") / "run", choices)
    return sets_of(run)[0]


def test_tokens_are_grouped_by_question_and_option(options):
    table = TokenTable.of(options, Precision.EXACT)
    arrays = table.arrays(slice(3, 5))
    assert arrays["token_counts"].tolist() == [9, 9]
    assert arrays["token_option"].tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 3] * 2
    assert arrays["token_gain"].shape == (2, 18)
    assert arrays["token_grid"].shape == (2, 18, 21)


def test_spans_after_a_wide_character_are_moved(options):
    arrays = TokenTable.of(options, Precision.EXACT).arrays(slice(0, 1))
    green = arrays["token_option"] == 2
    assert arrays["token_start"][green].tolist() == [0, 6, 9]
    assert arrays["token_end"][green].tolist() == [6, 9, 13]


def test_compact_tokens_keep_their_full_step_exact(options):
    exact, compact = (TokenTable.of(options, precision) for precision in (Precision.EXACT, Precision.COMPACT))
    one, other = exact.arrays(slice(0, 4)), compact.arrays(slice(0, 4))
    assert np.array_equal(one["token_gain"], other["token_gain"])
    again = other["token_steps"].cumsum(axis=-1, dtype=np.int8) * other["token_scale"][..., None]
    assert np.abs(again - one["token_grid"]).max() < np.abs(one["token_grid"]).max() / 200


def test_too_many_tokens_keep_their_ends(options):
    arrays = TokenTable.of(options, Precision.ENDS).arrays(slice(0, 4))
    assert "token_grid" not in arrays
    assert "token_steps" not in arrays
