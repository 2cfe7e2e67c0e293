import numpy as np
import pytest

from loopscope.path import quadratic_root
from loopscope.report.details import CHUNK, Details
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
