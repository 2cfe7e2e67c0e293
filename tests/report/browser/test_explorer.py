"""Plot and table: pointing, opening, filtering, sorting, and addresses that bring back the same view."""

import re

import numpy as np
import pytest


def rows(page):
    return page.locator("table.records tbody tr").count()


def count(page):
    return page.locator(".table-head [role=status]").inner_text()


def field(page, name):
    return page.locator("label.field", has_text=re.compile(f"^{name}")).locator("select, input")


def test_filter_by_outcome_keeps_exactly_those(visit, report, riddles, choices):
    page = visit(report, "#/questions")
    for name in ("directional failure", "neutral", "progressing"):
        page.locator("label.kind", has_text=name).click()
    expected = sum(int((made.outcome(at) == 3).sum()) for made in (riddles, choices) for at in range(2))
    assert count(page).endswith(f"{expected} updates")
    assert "outcome=3" in page.url


def test_finite_step_failures_stand_first_the_greatest_loss_before_others(visit, report, riddles):
    page = visit(report, "#/questions?run=first&t=4")
    gain, outcome = riddles.path(1, 1.0), riddles.outcome(1)
    order = np.lexsort((gain, -outcome.astype(int)))
    expected = [f"Riddle {row}:" for row in order[:5]]
    shown = page.locator("table.records tbody a").all_inner_texts()[:5]
    assert [text[: len(start)] for text, start in zip(shown, expected, strict=True)] == expected


def numbers(page, column):
    return page.locator(f"table.records tbody td:nth-child({column})").all_inner_texts()


@pytest.mark.parametrize("column", [4, 7])
def test_a_column_has_one_format(visit, report, column):
    shown = numbers(visit(report, "#/questions?run=first"), column)
    assert len(shown) == 50
    assert len({len(text.partition(".")[2]) for text in shown if text != "—"}) == 1
    assert not any("×" in text or "-" in text for text in shown)
    if column < 6:
        assert all(text[0] in "+−" for text in shown)


@pytest.mark.parametrize("width", [390, 1024])
def test_every_number_of_a_row_is_within_the_window(visit, report, width):
    page = visit(report, "#/questions", viewport={"width": width, "height": 900})
    for cell in page.locator("table.records tbody tr").first.locator("td").all():
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert cell.inner_text().strip()


def test_back_returns_through_the_choices(visit, expect, report):
    page = visit(report, "#/questions")
    field(page, "Run").select_option("first")
    field(page, "Update").select_option("4")
    page.locator("th button[data-sort=gain]").click()
    page.go_back()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Outcome")
    page.go_back()
    expect(field(page, "Update")).to_have_value("")
    expect(field(page, "Run")).to_have_value("first")
    page.go_back()
    expect(field(page, "Run")).to_have_value("")
    page.go_forward()
    expect(field(page, "Run")).to_have_value("first")


def test_text_filter_reads_the_whole_question(visit, expect, report):
    page = visit(report, "#/questions")
    field(page, "Text").fill("59 APPLES")
    expect(page.locator(".table-head [role=status]")).to_have_text("2 updates")
    field(page, "Text").fill("")
    expect(page.locator(".table-head [role=status]")).to_have_text("1–50 of 140 updates")


def test_sorting_orders_by_the_column(visit, report, riddles):
    page = visit(report, "#/questions?run=first&t=4")
    page.locator("th button[data-sort=slope]").click()
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("A")
    first = page.locator("table.records tbody tr a").first
    assert first.inner_text().startswith(f"Riddle {int(np.argmin(riddles.A[1]))}:")
    page.locator("th button[data-sort=slope]").click()
    assert (
        page.locator("table.records tbody tr a")
        .first.inner_text()
        .startswith(f"Riddle {int(np.argmax(riddles.A[1]))}:")
    )


def test_an_address_opens_the_same_selection(visit, report):
    page = visit(report, "#/questions?run=second&t=2&outcome=0%2C3&q=choice+1&sort=slope&dir=desc")
    assert field(page, "Run").input_value() == "second"
    assert field(page, "Text").input_value() == "choice 1"
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("A")
    assert not page.locator("label.kind", has_text="neutral").locator("input").is_checked()
    texts = page.locator("table.records tbody a").all_inner_texts()
    assert texts
    assert all("Choice 1" in text for text in texts)


def point_of(page, row, transition):
    """Where the plot draws a question, found by walking through its points with the keyboard."""
    canvas = page.locator("canvas")
    canvas.focus()
    page.keyboard.press("Home")
    for _ in range(200):
        if page.locator(".tip").inner_text().startswith(f"Riddle {row}:"):
            return
        page.keyboard.press("ArrowRight")
    raise AssertionError("the point was not met")


def test_hovering_and_clicking_a_point_opens_its_question(visit, report):
    page = visit(report, "#/questions?run=first&t=4&outcome=3")
    page.locator("canvas").focus()
    page.keyboard.press("Home")
    # The tip stands beside its point; where that is, its style says.
    x, y = page.locator(".tip").evaluate(
        """(tip) => {
          const frame = tip.parentElement.getBoundingClientRect();
          const { left, right, top, bottom } = tip.style;
          return [
            left === "auto" ? frame.right - parseFloat(right) + 12 : frame.left + parseFloat(left) - 12,
            top === "auto" ? frame.bottom - parseFloat(bottom) + 12 : frame.top + parseFloat(top) - 12,
          ];
        }"""
    )
    page.mouse.move(5, 5)
    page.locator("canvas").blur()
    assert not page.locator(".tip").is_visible()
    page.mouse.move(x, y)
    words = page.locator(".tip p").first.inner_text()
    assert "finite-step failure" in page.locator(".tip").inner_text()
    page.mouse.click(x, y)
    page.wait_for_selector(".question-head")
    assert words in page.locator(".words-panel").inner_text()


def test_the_keyboard_walks_through_points_and_opens_one(visit, report):
    page = visit(report, "#/questions?run=first&t=4")
    point_of(page, 7, 4)
    assert "Riddle 7:" in page.locator("#announcer").text_content()
    page.keyboard.press("Enter")
    page.wait_for_selector(".question-head")
    assert "riddles-7" in page.locator("h1").inner_text()


def test_the_way_back_and_the_next_question_follow_the_filter(visit, expect, report):
    page = visit(report, "#/questions?run=first&t=4&outcome=3")
    total = rows(page)
    page.locator("table.records tbody a").first.click()
    page.wait_for_selector(".question-head")
    assert f"1 of {total}" in page.locator(".crumbs").inner_text()
    page.get_by_role("link", name="Next").click()
    expect(page.locator(".crumbs")).to_contain_text(f"2 of {total}")
    page.get_by_role("link", name="All questions").click()
    page.wait_for_selector("table.records")
    assert rows(page) == total
