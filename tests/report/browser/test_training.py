"""A training in steps: numbers are those of the table, steps lead to their questions, choices are in the address."""

import pytest

from loopscope.stats import Bootstrap
from loopscope.studies import table

FEW = Bootstrap(resamples=60)
STEPS = (9, 10, 200)
"""Of the page `training`."""


@pytest.fixture(scope="module")
def rows(training):
    return [row for row in table("training", training.parent / "over-time", FEW).rows if row.condition.transition == 4]


def test_bars_and_numbers_are_those_of_the_table(visit, training, rows):
    page = visit(training, "#/training")
    assert page.locator(".intro").inner_text().startswith("A training in steps")
    shown = page.locator(".training-steps li")
    assert [text.split()[0] for text in shown.all_inner_texts()] == [str(step) for step in STEPS]
    for place, row in enumerate(rows):
        assert f"{100 * row['finite_step'].value:.1f}%" in shown.nth(place).inner_text()
        words = shown.nth(place).locator(".bar").get_attribute("aria-label")
        assert f"{round(row['progressing'].value * 20)} progressing" in words
    heads = page.locator("table.training-numbers thead").inner_text()
    assert "mean gain ΔU" in heads
    assert page.locator("table.training-numbers tbody tr").count() == len(STEPS)
    assert page.locator(".training-line").count() == 2
    assert page.locator(".training-best").count() == len(STEPS)


def test_a_step_leads_to_its_questions_and_the_update_is_in_the_address(visit, training, expect):
    page = visit(training, "#/training?of=0&t=3")
    assert page.locator("select[data-choice=t]").input_value() == "3"
    page.locator("select[data-choice=t]").select_option("4")
    expect(page.locator("h2").first).to_have_text("Outcomes of 4→5 by step")
    assert "t=4" in page.evaluate("location.hash")
    page.locator(".training-steps a").nth(1).click()
    expect(page.locator("main[data-view=questions]")).to_be_visible()
    assert "run=step-10&" in page.evaluate("location.hash")
    page.go_back()
    expect(page.locator("h2").first).to_have_text("Outcomes of 4→5 by step")


def test_runs_of_no_training_have_no_such_view(visit, report):
    page = visit(report, "#/training")
    assert page.locator("nav a[data-view=training]").count() == 0
    assert "No two runs of this page are steps of one training" in page.locator("main").inner_text()
