import html
import re

import pytest

import loopscope as ls
from loopscope.errors import LoopscopeError


@pytest.fixture(scope="module")
def run(tmp_path_factory, synthetic):
    questions = [synthetic.Question("q", ["two <b>words</b>\nhere"])] * 3
    made = synthetic.Made(questions, lens=2, others=("</td><script>alert(1)</script>", "\u202e"))
    return ls.Run(synthetic.write_run(tmp_path_factory.mktemp("lens") / "run", made).path)


def test_the_frame_says_what_the_trace_says(run):
    frame = run.question("riddles-1").lens().frame
    trace = run.trace.filter(row=1).collect().sort("option", "token", "depth")
    texts = run.vocabulary
    assert frame["says"].to_list() == [texts[each] for each in trace["top_id"]]
    assert frame["reference"].to_list() == [texts[each] for each in trace["token_id"]]
    assert frame["rank"].to_list() == trace["rank"].to_list()
    assert frame["probability"].to_list() == pytest.approx(trace["log_prob"].exp().to_list())


def test_a_notebook_shows_every_token_as_text(run):
    lens = run.question("riddles-1").lens()
    shown = lens._repr_html_()
    cells = re.findall(r"<span[^>]*>([^<]*)</span></td>", shown)
    assert len(cells) == lens.frame.height
    assert "<script" not in shown
    assert "\u202e" not in shown
    says = [text.removeprefix("× ") for text in map(html.unescape, cells)]
    expected = [text.replace("\u202e", "\\u202e").replace("\n", "↵") for text in lens.frame["says"]]
    assert says == expected
    assert [cell.startswith("× ") for cell in cells] == [rank != 1 for rank in lens.frame["rank"]]


def test_a_run_without_a_lens_says_how_to_get_one(tmp_path, synthetic):
    made = synthetic.Made([synthetic.Question("q", ["a"])] * 2)
    run = ls.Run(synthetic.write_run(tmp_path / "run", made).path)
    with pytest.raises(LoopscopeError, match="has no lens: measure again with lens=5"):
        _ = run.question("riddles-1").lens().frame
