"""Certified outcomes carry a mark with a title; a run without certificates shows none and says how to get them."""

import polars as pl
import pytest

import loopscope as ls
from loopscope.report import write_report
from loopscope.report.evaluation_set import EvaluationSet, sets_of

pytestmark = pytest.mark.slow

TITLE = "Certified: no rounding of the readout can overturn this outcome."


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certified")
    ls.measure(
        "toy-ouro",
        "arithmetic",
        output=folder / "run",
        transitions="3-4",
        limit=2,
        level="quick",
        certify=True,
        device="cpu",
    )
    return write_report([folder / "run"], folder / "report.html")


def test_outcomes_are_marked_in_the_table_and_at_the_question(visit, expect, certified):
    page = visit(certified, "#/questions")
    expect(page.locator(".records .certified")).to_have_count(4)
    assert page.locator(".records .certified").first.get_attribute("title") == TITLE
    page.locator(".records tbody a").first.click()
    expect(page.locator(".verdict .certified")).to_have_attribute("aria-label", TITLE)
    assert "✓" in page.locator(".verdict").inner_text()


def test_a_run_without_certificates_shows_no_mark(visit, expect, report):
    page = visit(report, "#/questions")
    expect(page.locator(".records tbody tr").first).to_be_visible()
    expect(page.locator(".certified")).to_have_count(0)


def test_an_outcome_that_is_certified_otherwise_is_told_apart(certified):
    (data,) = sets_of(ls.Run(certified.parent / "run"))
    assert data.certified().tolist() == [[1, 1], [1, 1]]
    run = ls.Run(certified.parent / "run")
    codes = run.certificates.with_columns(pl.col("outcome").to_physical().cast(pl.Int8))
    other = codes.with_columns(outcome=pl.when(pl.col("row") == 0).then(None).otherwise((pl.col("outcome") + 1) % 4))
    run.read = lambda table: other if table == "certificates" else ls.Run.read(run, table)  # type: ignore[method-assign]
    assert EvaluationSet(run, data.condition, data.updates).certified().tolist() == [[0, 2], [0, 2]]
