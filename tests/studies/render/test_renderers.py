"""How cells, heads and awkward text are written."""

import pytest

from loopscope.stats import Estimate, Interval
from loopscope.studies.render import latex_cell, latex_text, number
from loopscope.studies.topics.mechanism import mechanism

ESTIMATE = Estimate(0.4918, 364, Interval(0.4429, 0.541))


@pytest.mark.parametrize(
    ("value", "spec", "per", "plain", "latex"),
    [
        (ESTIMATE, ".2%", 1.0, "49.18 [44.29, 54.10]", r"$49.18\;[44.29,54.10]$"),
        (Estimate(None, 0), ".2%", 1.0, "—", "---"),
        (None, ".2f", 1.0, "—", "---"),
        (float("nan"), ".2f", 1.0, "—", "---"),
        (-0.00873, "+.2f", 1e-3, "-8.73", "$-8.73$"),
        (0.00149, "+.2f", 1e-3, "+1.49", "$+1.49$"),
        (1.53e-7, ".3f", 1e-4, "0.00153", "0.00153"),
        (
            Estimate(1.53e-7, 9, Interval(9e-9, 3.48e-7)),
            *(".3f", 1e-4, "0.00153 [0.00009, 0.00348]", r"$0.00153\;[0.00009,0.00348]$"),
        ),
        (-1e-13, ".2f", 1.0, "-1.00e-13", r"$-1.00\times10^{-13}$"),
        (0.0, ".2f", 1.0, "0.00", "0.00"),
        (Estimate(0.5, 9, Interval(-0.001, 1.0)), ".2f", 1.0, "0.50 [0.00, 1.00]", r"$0.50\;[0.00,1.00]$"),
        (1.747e-5, ".3e", 1.0, "1.747e-05", r"$1.747\times10^{-5}$"),
        (179, "", 1.0, "179", "179"),
        ("4→5", "", 1.0, "4→5", r"4$\to$5"),
        ("", "", 1.0, "—", "---"),
    ],
)
def test_cells(value, spec, per, plain, latex):
    assert number(value, spec, per, ci=True) == plain
    assert latex_cell(plain) == latex


@pytest.fixture
def hostile(records, synthetic):
    """A task and model whose names would break out of Markdown and LaTeX cells."""
    task = synthetic.Task("a|b_c%<script>", {4: synthetic.Paths.of([0.5, 0.2], [-1.0, -0.1])})
    return records(task, model={"name": "m&m\n|x", "toy": False})


def test_names_cannot_leave_their_cells(hostile):
    lines = [line for line in mechanism.table(hostile).to_markdown().splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert r"a\|b\_c%\<script\>" in lines[-1]
    latex = mechanism.table(hostile).to_latex()
    assert r"m\&m \textbar{}x & a\textbar{}b\_c\%\textless{}script\textgreater{} test" in latex


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("A>0, Q<0", r"A\textgreater{}0, Q\textless{}0"),
        ('|"', r"\textbar{}\texttt{\char34}"),
        (r"100% {a_b} & \c ~ ^ # $", r"100\% \{a\_b\} \& \textbackslash{}c \textasciitilde{} \textasciicircum{} \# \$"),
        ("a--b ``c''", r"a-{}-b `{}`c'{}'"),
        ("café", r"caf\'{e}"),
        ("模\u202e\x1b", r"\textbackslash{}u6a21\textbackslash{}u202e\textbackslash{}u001b"),
        ("α ≤ 1 …", r"$\alpha$ $\leq$ 1 \ldots{}"),
    ],
)
def test_latex_prints_text_as_it_stands(text, latex):
    assert latex_text(text) == latex


@pytest.mark.parametrize("name", ["[m]", "*m"])
def test_a_first_cell_is_no_argument_of_the_line_break_before_it(records, synthetic, name):
    made = records(synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])}), model={"name": name, "toy": False})
    lines = mechanism.table(made).to_latex().splitlines()
    assert lines[lines.index(r"\midrule") + 1].startswith("{}" + name)


def test_long_tables_continue_and_wide_ones_are_turned(lively, quick):
    from loopscope.studies.records import Records
    from loopscope.studies.topics.scales import scale_prediction

    latex = scale_prediction.table(Records([lively]), quick).to_latex()
    assert latex.count(r"\begin{sidewaystable}") == latex.count(r"\end{sidewaystable}") > 1
    assert latex.count(r"\label{") == 1
    assert latex.count("(continued)") == latex.count(r"\begin{sidewaystable}") - 1


def test_notebooks_get_the_markdown(records, synthetic, quick):
    made = mechanism.table(records(synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.1], [-1.0, 0.1])})), quick)
    assert made._repr_markdown_() == made.to_markdown()
    assert str(made) == made.to_text()
    assert len(repr(made)) < 200
