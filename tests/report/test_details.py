import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.path import quadratic_root
from loopscope.report.details import detail_chunks, quantised, token_columns
from loopscope.report.evaluation_set import CHUNK, sets_of, text_chunks


@pytest.fixture(scope="module")
def chunk(tmp_path_factory, synthetic, riddles, unpack):
    data = sets_of(synthetic.write_run(tmp_path_factory.mktemp("details") / "run", riddles))[0]
    return unpack(next(detail_chunks(data, 16, paths=True)))[0]


def test_grids_and_paths_are_the_stored_ones(chunk, riddles):
    grid, path = chunk["grid"].reshape(30, 2, 21), chunk["path"].reshape(30, 2, 257)
    for at in range(2):
        np.testing.assert_array_equal(grid[:, at], riddles.grid(at).astype(np.float32))
        np.testing.assert_allclose(path[:, at, 128], riddles.path(at, 0.5), rtol=1e-6)


def test_numbers_are_those_of_the_cubic(chunk, riddles):
    found = {
        name: chunk[f"scalar_{name}"].reshape(30, 2).T for name in ("root", "safe_end", "crossing_low", "crossing_high")
    }
    np.testing.assert_allclose(found["root"], quadratic_root(riddles.A, riddles.Q), rtol=1e-6)
    bound = np.maximum(np.maximum(-2 * riddles.Q, -2 * riddles.Q - 6 * riddles.R), 0)
    expected = np.where(riddles.A > 0, np.minimum(1, 2 * riddles.A / bound), np.nan)
    np.testing.assert_allclose(found["safe_end"], expected, rtol=1e-6)
    low, high = found["crossing_low"], found["crossing_high"]
    for at in range(2):
        negative = (riddles.grid(at) < 0).any(axis=1)
        assert np.array_equal(np.isfinite(low[at]), negative)
        np.testing.assert_allclose((high - low)[at][negative], 0.05, atol=1e-6)


def test_chunks_cover_every_question_once(tmp_path, synthetic, unpack):
    made = synthetic.Made([synthetic.Question(f"q {row}", ["a"]) for row in range(2 * CHUNK + 3)], tokens=False)
    data = sets_of(synthetic.write_run(tmp_path / "run", made))[0]
    utilities = [unpack(packed)[0]["utility"] for packed in detail_chunks(data, 0, paths=False)]
    assert [len(values) // 6 for values in utilities] == [CHUNK, CHUNK, 3]
    np.testing.assert_array_equal(np.concatenate(utilities), made.utility.astype(np.float32).ravel())
    prompts = [[entry[0] for entry in unpack(packed)[1]["entries"]] for packed in text_chunks(data)]
    assert list(map(len, prompts)) == [CHUNK, CHUNK, 3]
    assert [prompt for each in prompts for prompt in each] == [f"q {row}" for row in range(2 * CHUNK + 3)]


@given(st.lists(st.floats(-100, 100, width=32), min_size=20, max_size=20), st.sampled_from([8, 16]))
def test_rounded_paths_are_within_half_a_step(values, bits):
    grid = np.array([[0.0, *values]], dtype=np.float32)
    step, differences = quantised(grid, bits)
    again = differences.cumsum(axis=-1, dtype=f"i{bits // 8}").astype(np.float64) * step[:, None]
    assert np.abs(again - grid).max() <= 0.501 * np.abs(grid).max() / (2 ** (bits - 1) - 1) + 1e-12


@pytest.mark.parametrize(("bits", "error"), [(16, 2e-5), (8, 5e-3), (0, None)])
def test_tokens_keep_their_full_step_whatever_the_bits_of_their_paths(tmp_path, synthetic, choices, bits, error):
    data = sets_of(synthetic.write_run(tmp_path / "run", choices))[0]
    name, offsets, columns = token_columns(data, bits)
    assert name == "token_counts"
    assert offsets[:4].tolist() == [0, 9, 18, 27]
    assert columns["token_option"][:18].tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 3] * 2
    green = np.flatnonzero(columns["token_option"] == 2)[:3]
    assert (columns["token_start"][green].tolist(), columns["token_end"][green].tolist()) == ([0, 6, 8], [6, 8, 12])
    stored = [data.tokens(transition) for transition in data.transitions]
    np.testing.assert_array_equal(columns["token_gain"].T, [rows["gain"].to_numpy().astype("f4") for rows in stored])
    assert ("token_steps" in columns) == (error is not None)
    if error is not None:
        again = columns["token_steps"].cumsum(axis=-1, dtype=f"i{bits // 8}") * columns["token_scale"][..., None]
        grid = np.stack([np.stack(rows["grid_gain"].to_list()) for rows in stored], axis=1)
        assert np.abs(again - grid).max() < error * np.abs(grid).max()
