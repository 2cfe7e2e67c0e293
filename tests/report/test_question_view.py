"""`run.question`: numbers and words are those of the run, the drawing shows them, and text never becomes markup."""

import re
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest

from loopscope import LoopscopeError, Outcome, Run


class Parsed(HTMLParser):
    """Elements with their attributes, and the text between them."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.elements, self.text, self.open = [], "", []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def first(runs):
    return Run(runs / "first")


@pytest.fixture(scope="module")
def second(runs):
    return Run(runs / "second")


@pytest.mark.parametrize("row", [0, 5, 29])
def test_numbers_are_those_of_the_run(first, riddles, row):
    view = first.question(f"riddles-{row}", 4)
    assert (view.slope, view.quadratic) == (riddles.A[1, row], riddles.Q[1, row])
    assert view.gain == pytest.approx(riddles.path(1, 1.0)[row], rel=1e-12)
    assert view.outcome == riddles.outcome(1)[row]
    alphas, gains = view.path
    assert len(alphas) == 257
    np.testing.assert_allclose(gains, [riddles.path(1, alpha)[row] for alpha in alphas], atol=1e-15)
    assert view.utilities == pytest.approx(dict(zip(riddles.depths, riddles.utility[row], strict=True)))


def test_the_last_update_is_shown_unless_another_is_named(first):
    view = first.question("riddles-3")
    assert view.transition == first.manifest.transitions[-1]
    other = view.at(first.manifest.transitions[0], alpha=0.5)
    assert (other.id, other.transition, other.alpha) == (view.id, first.manifest.transitions[0], 0.5)


def test_tokens_come_with_their_words_and_outcomes(second):
    tokens = second.question("choices-0", 4).tokens
    assert tokens.filter(pl.col("option") == 2)["text"].to_list() == [" green", " 😀", " one"]
    for slope, gain, outcome in tokens.select("slope", "gain", "outcome").iter_rows():
        assert outcome == ("progressing" if gain > 0 else f"{'finite-step' if slope > 0 else 'directional'} failure")


def test_the_drawing_is_the_path(first, riddles):
    """Read back from the picture by its own axis labels."""
    parsed = Parsed(first.question("riddles-7", 4)._repr_html_())
    curve = next(each for each in parsed.all("polyline") if "stroke-dasharray" not in each)
    xs, ys = np.array([point.split(",") for point in curve["points"].split()], dtype=float).T
    labels = re.findall(r'<text x="54" y="([\d.]+)"[^>]*>([^<]+)</text>', first.question("riddles-7", 4)._repr_html_())
    written = [text.replace("−", "-").replace("×10⁻", "e-") for _, text in labels]
    written = [text.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")) for text in written]
    slope, offset = np.polyfit([float(y) - 4 for y, _ in labels], [float(text) for text in written], 1)
    alphas = (xs - xs[0]) / (xs[-1] - xs[0])
    expected = np.array([riddles.path(1, alpha)[7] for alpha in alphas])
    np.testing.assert_allclose(slope * ys + offset, expected, atol=0.01 * np.ptp(expected))


def test_tints_follow_the_gain_at_the_scale(first):
    for alpha, at in ((1.0, 20), (0.25, 5)):
        view = first.question("riddles-4", 4, alpha=alpha)
        expected = view.token_rows["grid_gain"].list.get(at).to_list()
        told = [span["title"] for span in Parsed(view._repr_html_()).all("span") if "nats at" in span.get("title", "")]
        assert len(told) == len(expected)
        for title, gain in zip(told, expected, strict=True):
            assert title.endswith(f"α = {alpha:g}")
            assert title.startswith("+" if gain > 0 else "−" if gain < 0 else "0")


HOSTILE = '</span></div><script>window.pwned = 1</script><img src=x onerror="1"> " onmouseover=\'1\' &lt;'


def test_words_stay_words(tmp_path, synthetic):
    questions = [synthetic.Question(f"{HOSTILE} p", [HOSTILE, f"{HOSTILE} b"], 0)] * 2
    made = synthetic.Made(questions, name="</p><i>task", model={"name": "<b>model</b>", "spec": "<b>x</b>"})
    synthetic.write_run(tmp_path / "run", made)
    run = Run(tmp_path / "run")
    tables = (run.table("mechanism")._repr_markdown_(), run.compare()._repr_markdown_())
    for shown in (run.question("</p><i>task-0")._repr_html_(), run._repr_html_(), *tables):
        parsed = Parsed(re.sub(r"\\<", "&lt;", shown))  # Markdown shows an escaped < as such
        assert not {"script", "img", "i", "b", "a"} & {tag for tag, _ in parsed.elements}
        assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    parsed = Parsed(run.question("</p><i>task-0")._repr_html_())
    assert f"{HOSTILE} p" in parsed.text
    assert f"{HOSTILE} b" in parsed.text


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda run: run.question("riddles-99"), "has no question 'riddles-99': did you mean riddles-9?"),
        (lambda run: run.question("zzz"), "has no question 'zzz': it has riddles-0, riddles-1, riddles-2, …"),
        (lambda run: run.question("riddles-1", 9), "transition=9 is too large: give a number from 3 to 4"),
        (lambda run: run.question("riddles-1", task="sums"), "task='sums' is not in this run: choose riddles"),
        (lambda run: run.question("riddles-1", alpha=2), "alpha=2 is not a scale: give a number from 0 to 1"),
    ],
)
def test_mistakes_are_one_line(first, call, line):
    with pytest.raises(LoopscopeError, match=re.escape(line)):
        call(first)


def test_a_run_without_tokens_says_how_to_get_them(tmp_path, synthetic):
    made = synthetic.Made([synthetic.Question("a", ["b"])] * 3, tokens=False)
    synthetic.write_run(tmp_path / "run", made)
    view = Run(tmp_path / "run").question("riddles-0")
    assert "tokens=True" in Parsed(view._repr_html_()).text
    with pytest.raises(LoopscopeError, match="measure again with tokens=True"):
        _ = view.tokens


def test_a_run_shows_every_update(first, riddles):
    parsed = Parsed(first._repr_html_())
    for outcome in Outcome:
        assert str(outcome) in parsed.text
    for at, update in enumerate(("3→4", "4→5")):
        counts = "".join(str(int((riddles.outcome(at) == outcome).sum())) for outcome in Outcome)
        assert re.search(rf"{update}30[−+][\d.]+(×10⁻\S)?{counts}", parsed.text)


def test_a_damaged_run_says_so(tmp_path, synthetic):
    synthetic.write_run(tmp_path / "run", synthetic.Made([synthetic.Question("a", ["b"])] * 3))
    shard = next((tmp_path / "run" / "questions").glob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "is damaged" in Parsed(Run(tmp_path / "run")._repr_html_()).text


def test_pandas_is_only_needed_for_pandas(first, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(LoopscopeError, match=r"pip install pandas"):
        first.to_pandas()
