"""docs/studies.md says what the code does."""

import re
from pathlib import Path

import pytest
from paper_arithmetic import Scope, checks, discrepancies

from loopscope.studies import FIGURES, TABLES
from loopscope.studies.paper import cells, number_count

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "studies.md"


@pytest.fixture(scope="module")
def document():
    if not DOCUMENT.is_file():
        pytest.skip("the documentation is not beside the tests")
    return DOCUMENT.read_text(encoding="utf-8")


def test_every_study_is_listed_with_what_it_needs(document):
    for study in (*TABLES.values(), *FIGURES.values()):
        lines = [line for line in document.splitlines() if line.startswith(f"| `{study.name}` |")]
        assert len(lines) == sum(study.name in group for group in (TABLES, FIGURES))
        assert any(study.paper in line for line in lines)
        if study.kind == "table":
            assert any(study.needs in line for line in lines)


def test_every_discrepancy_of_the_paper_is_listed(document):
    for check in discrepancies():
        assert f"| {check.where} |" in document


def test_counts_are_current(document):
    across = sum(check.scope is Scope.ACROSS for check in checks())
    text = " ".join(document.split())
    assert f"{len(cells())} published cells ({number_count()} numbers" in text
    assert f"recompute {len(checks())} of them" in text
    assert f"All {len(checks()) - across} checks within one measurement hold" in text
    assert f"Of {across} comparisons between separate measurements" in text


def test_the_page_on_where_we_stand_names_studies_and_lines_that_there_are():
    text = DOCUMENT.with_name("where-we-stand.md").read_text(encoding="utf-8")
    assert set(re.findall(r"--name ([\w-]+)", text)) <= {*TABLES, *FIGURES}
    paper = DOCUMENT.parents[2] / "shared" / "paper.tex"
    if paper.is_file():
        last = len(paper.read_text(encoding="utf-8").splitlines())
        assert all(int(number) <= last for number in re.findall(r"\b[12]\d{3}\b(?!e)", text))


@pytest.mark.parametrize(
    ("recovered", "failures", "rate"),
    re.findall(r"(\d+)/(\d+) = ([\d.]+)%", "306/431 = 71.0% 231/322 = 71.7% 13/18 = 72.2%"),
)
def test_quoted_rates_are_right(document, recovered, failures, rate):
    assert round(100 * int(recovered) / int(failures), 1) == float(rate)
    assert f"{rate}%" in document
