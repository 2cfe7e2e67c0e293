"""Every table through a real pdflatex, in one document with 6.5 inches of text."""

import re
import shutil
import subprocess

import pytest

import loopscope as ls
from loopscope.stats import Bootstrap
from loopscope.studies import TABLES
from loopscope.studies.comparison import compare
from loopscope.studies.records import Records
from loopscope.studies.render import PACKAGES

QUICK = Bootstrap(resamples=20)
MODELS = ["[m]", "*star", 'a|b<c>"d"', "\\end{tabular}%$&#_^~{}", "x" * 300, "é模\u202e--''``?`"]
PAGE = r"""\documentclass{article}
\usepackage[letterpaper,margin=1in]{geometry}
\usepackage{%s}
\begin{document}
%s
\end{document}
"""


@pytest.fixture
def rich(lively, tmp_path, synthetic):
    """Everything that a run can hold, and models and tasks whose names would break out of a cell."""
    runs = [lively]
    for index, name in enumerate(MODELS):
        tasks = [
            synthetic.Task(
                f"{name[:60]} {kind}",
                {4: synthetic.realistic(30, seed=index)},
                kind=kind,
                tokens=synthetic.realistic_tokens(30, [4], seed=index),
            )
            for kind in ("solution", "options")
        ]
        runs.append(
            synthetic.write_run(tmp_path / f"run{index}", tasks, model={"name": name, "toy": False}, tokens=True)
        )
    paper = {"name": "Ouro-1.4B", "toy": False, "revision": "574fa66c"}
    task = synthetic.Task("math500", {4: synthetic.realistic(40, seed=9)})
    longer = {"transitions": "1-2", "depths": "1-3", "scales_to": 2.0, "limit": 4}
    runs.append(ls.measure("toy-ouro", "stories", output=str(tmp_path / "longer"), **longer))
    return Records([*runs, synthetic.write_run(tmp_path / "paper", [task], model=paper)])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
def test_every_table_fits_the_page(rich, tmp_path):
    tables = [study.table(rich, QUICK) for study in TABLES.values()]
    empty = {table.study for table in tables if not table.rows}
    assert empty <= {"optimum-refinement", "gate-agreement", "control", "shared-questions"}
    tables.append(compare(rich, QUICK, computed={table.study: table for table in tables}).table())
    assert tables[-1].rows
    written = "\n\\clearpage\n".join(table.to_latex() for table in tables)
    (tmp_path / "all.tex").write_text(PAGE % (PACKAGES, written))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "all.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=300)
    log = (tmp_path / "all.log").read_text(errors="replace")
    assert result.returncode == 0, log[-3000:]
    complaints = re.findall(r"^(?:!|Overfull|LaTeX Warning: (?:Float too|Command)).*", log, re.MULTILINE)
    assert complaints == []
    if shutil.which("pdftotext"):
        subprocess.run(["pdftotext", "-layout", "all.pdf"], cwd=tmp_path, check=True)
        text = (tmp_path / "all.txt").read_text()
        assert "A>0, Q<0" in text
        assert "[m]" in text
        assert "*star" in text
        assert "¿" not in text
        assert "¡" not in text
