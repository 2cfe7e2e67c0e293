"""The whole of a large validation set in one page: 10,042 questions with four options each and 880,000 tokens."""

import re

import numpy as np
import polars as pl
import pytest

from loopscope.report.details import lens_of
from loopscope.report.evaluation_set import sets_of
from loopscope.store import StoredRun

pytestmark = pytest.mark.slow

QUESTIONS = 10_042
FILE_LIMIT = 40_000_000
LENS_LIMIT = 60_000_000


@pytest.fixture(scope="module")
def large(page_of, synthetic):
    rng = np.random.default_rng(3)
    questions = [
        synthetic.Question(synthetic.prose(rng, 45), [synthetic.prose(rng, 22) for _ in range(4)], int(rng.integers(4)))
        for _ in range(QUESTIONS)
    ]
    made = synthetic.Made(questions, transitions=(4,), depths=(1, 2, 3, 4, 5, 6, 7, 8), name="completions")
    return page_of(made)


def test_the_file_can_be_mailed(large):
    assert large.stat().st_size <= FILE_LIMIT


def test_a_lens_on_the_first_500_questions_leaves_it_mailable(large, synthetic, tmp_path):
    """What the lens of 500 questions adds, with candidates that no compression can guess."""
    rng = np.random.default_rng(4)
    questions = [
        synthetic.Question(synthetic.prose(rng, 45), [synthetic.prose(rng, 22) for _ in range(4)], int(rng.integers(4)))
        for _ in range(500)
    ]
    made = synthetic.Made(questions, transitions=(4,), depths=(1, 2, 3, 4, 5, 6, 7, 8), tokens=False, lens=5)
    lens = lens_of(sets_of(synthetic.write_run(tmp_path / "run", made))[0], 500)
    added = len(lens.vocabulary) + sum(map(len, lens.chunks))
    assert 1_000_000 < added < 10_000_000
    assert large.stat().st_size + added <= LENS_LIMIT


def test_details_are_decoded_when_opened(visit, large):
    page = visit(large, "#/questions")
    page.locator("table.records a").first.click()
    page.wait_for_selector(".option")
    assert page.locator(".option").count() == 4
    page.get_by_role("button", name="Quarter").click()
    shown = page.locator(".option .token").evaluate_all("(all) => all.map((token) => Number(token.dataset.gain))")
    row = int(re.search(r"completions-(\d+)", page.url)[1])
    stored = StoredRun(large.parent / "run").tokens.filter(pl.col("row") == row).sort("option", "token").collect()
    # Eight bits: half a step of a 127th of each token's largest gain.
    grid = stored["grid_gain"].to_list()
    for gain, path in zip(shown, grid, strict=True):
        assert gain == pytest.approx(path[5], abs=0.51 / 127 * max(map(abs, path)))
