import re

import pytest

from loopscope.report.study_pages import compute_tables, missing_tables
from loopscope.stats import Bootstrap
from loopscope.studies.records import Records

FEW = Bootstrap(resamples=20)


@pytest.fixture
def quick_run(tmp_path, synthetic):
    """Solutions of a toy model at level quick, without tokens."""
    made = synthetic.Made(
        [synthetic.Question("q", ["a"])] * 3, level="quick", tokens=False, model={"name": "toy-a", "toy": True}
    )
    return synthetic.write_run(tmp_path / "run", made)


def test_a_table_that_is_missing_has_the_reason_that_applies(quick_run):
    tables = compute_tables(Records([quick_run]), FEW)
    reasons = {entry["name"]: entry["reason"] for entry in missing_tables(tables)}
    contraction = "without the columns of this study: toy-a riddles test (measure with level='grid')"
    assert reasons["contraction"] == contraction
    assert reasons["refined-optima"].endswith("(measure with level='full')")
    assert reasons["transitions"] == "this study is about option tasks, and these runs hold none"
    assert reasons["tokens"] == "no run holds token rows: measure with tokens=True"
    assert all(reasons.values())
    assert "mechanism" not in reasons


def test_the_page_names_flags(quick_run, tmp_path, unpack, without_figures):
    page = without_figures([quick_run.path], tmp_path / "report.html", FEW).read_text(encoding="utf-8")
    packed = re.search(r'id="studies">([^<]*)<', page)
    missing = {entry["name"]: entry["reason"] for entry in unpack(packed[1])[1]["missing"]}
    assert missing["tokens"] == "no run holds token rows: measure with --tokens"
    assert missing["contraction"].endswith("(measure with --level grid)")
