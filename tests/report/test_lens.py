import polars as pl
import pytest

from loopscope.errors import LoopscopeError
from loopscope.report.details import LENS_CHUNK, PROBABILITY_STEPS, lens_of
from loopscope.report.evaluation_set import sets_of
from loopscope.stats import Bootstrap
from loopscope.store import StoredRun


@pytest.fixture(scope="module")
def run(tmp_path_factory, synthetic):
    """More questions than a chunk holds, with three options of different length."""
    questions = [
        synthetic.Question(f"q {row}", [f"one {row}", "two words 😀 here", "three"], row % 3)
        for row in range(LENS_CHUNK + 5)
    ]
    made = synthetic.Made(questions, lens=4, others=(" extra", "\n"))
    return synthetic.write_run(tmp_path_factory.mktemp("lens") / "run", made)


def test_the_page_holds_what_the_trace_says(run, unpack):
    lens = lens_of(sets_of(run)[0], 1000)
    texts = unpack(lens.vocabulary)[1]["texts"]
    frame = run.trace.collect().sort("row", "option", "token", "depth")
    tokens = frame.select("row", "option", "token").unique(maintain_order=True)
    depths = frame["depth"].max()
    rows = []
    for packed in lens.chunks:
        arrays, _ = unpack(packed)
        count = len(arrays["token_option"])
        ids, probs = arrays["ids"].reshape(count, depths, 4), arrays["probs"].reshape(count, depths, 4)
        for at in range(count):
            for loop in range(depths):
                place = at * depths + loop
                said = [texts[each] for each in ids[at, loop]]
                likely = (probs[at, loop] / PROBABILITY_STEPS).tolist()
                rows.append(
                    (texts[arrays["reference"][at]], said, likely, arrays["rank"][place], arrays["log_prob"][place])
                )
    assert len(rows) == frame.height == tokens.height * depths
    vocabulary = run.vocabulary
    for found, stored in zip(rows, frame.iter_rows(named=True), strict=True):
        reference, said, probs, rank, log_prob = found
        assert reference == vocabulary[stored["token_id"]]
        assert said == [vocabulary[each] for each in stored["lens_ids"]]
        assert probs == pytest.approx(stored["lens_probs"], abs=0.51 / PROBABILITY_STEPS)
        assert (rank, log_prob) == (stored["rank"], pytest.approx(stored["log_prob"]))


def test_overshoots_are_losses_of_steps_that_would_gain_when_shorter(run, unpack):
    lens = lens_of(sets_of(run)[0], 1000)
    frame = run.trace.collect().sort("row", "option", "token", "depth")
    expected = []
    for _, token in frame.group_by("row", "option", "token", maintain_order=True):
        before = None
        for cell in token.iter_rows(named=True):
            shorter = max(cell["gains"] or [-1.0])
            lost = before is not None and cell["log_prob"] - before < -1e-4
            expected.append(shorter if lost and shorter > 1e-4 else 0.0)
            before = cell["log_prob"]
    found = [gain for packed in lens.chunks for gain in unpack(packed)[0]["short_gain"].tolist()]
    assert found == pytest.approx(expected)
    assert any(expected)


def test_only_the_first_questions_carry_it(run, unpack):
    lens = lens_of(sets_of(run)[0], 3)
    assert lens.described["questions"] == 3
    assert [len(unpack(packed)[0]["counts"]) for packed in lens.chunks] == [3]
    rank = run.trace.filter(pl.col("row") < 3).select("row", "option", "token", "depth", "rank").collect()
    ends = rank.filter(pl.col("depth").is_in([4, 6])).pivot("depth", index=["row", "option", "token"], values="rank")
    lost = ends.with_columns(lost=(pl.col("4") == 1) & (pl.col("6") != 1)).group_by("row").agg(pl.col("lost").sum())
    assert unpack(lens.vocabulary)[0]["lost"].tolist() == lost.sort("row")["lost"].to_list()


def test_a_run_without_a_lens_has_none(tmp_path, synthetic):
    run = synthetic.write_run(tmp_path / "run", synthetic.Made([synthetic.Question("q", ["a"])] * 2))
    assert lens_of(sets_of(run)[0], 10) is None
    assert run.vocabulary is None


def test_ids_stand_for_texts_where_the_run_does_not_say_them(tmp_path, synthetic, unpack, without_figures):
    made = synthetic.Made([synthetic.Question("q", ["a b"])] * 2, lens=2)
    run = synthetic.write_run(tmp_path / "run", made)
    (run.layout.vocabulary).unlink()
    texts = unpack(lens_of(sets_of(StoredRun(run.path))[0], 10).vocabulary)[1]["texts"]
    assert all(text.startswith("#") for text in texts)
    (run.layout.vocabulary).write_text("{")
    with pytest.raises(LoopscopeError, match=r"vocabulary\.json is damaged: remove it"):
        without_figures([run.path], tmp_path / "report.html", Bootstrap(resamples=5))
