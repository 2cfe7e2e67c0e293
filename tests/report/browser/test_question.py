"""One question: the slider reads the stored grid, tokens are tinted from their own, a link brings back the scale."""

import numpy as np
import polars as pl
import pytest

from loopscope import Run
from loopscope.path import GRID
from loopscope.store import StoredRun

ADDRESS = "#/question?run=first&task=riddles/test&id=riddles-{row}&t={t}"


def slide(page, alpha):
    page.locator("#alpha").evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input')) }", str(alpha))


def phi(page):
    return float(page.locator("#phi [data-value]").get_attribute("data-value"))


def stored(report, row, transition):
    frame = StoredRun(report.parent / "first").records
    return frame.filter(pl.col("row") == row, pl.col("transition") == transition).row(0, named=True)


@pytest.mark.parametrize(("row", "transition"), [(0, 3), (17, 4), (29, 4)])
def test_the_slider_agrees_with_the_stored_grid(visit, report, row, transition):
    page = visit(report, ADDRESS.format(row=row, t=transition))
    grid = stored(report, row, transition)["grid_gain"]
    for alpha, gain in zip(GRID, grid, strict=True):
        slide(page, alpha)
        assert phi(page) == np.float32(gain)
        assert "stored" in page.locator("#phi").inner_text()


def test_between_stored_points_the_finer_path_is_read(visit, report, riddles):
    page = visit(report, ADDRESS.format(row=5, t=4))
    slide(page, 0.37)
    assert phi(page) == pytest.approx(riddles.path(1, 0.37)[5], rel=1e-3)
    assert "FP64 path" in page.locator("#phi").inner_text()


def test_without_a_finer_path_it_is_read_on_straight_lines(visit, report, choices):
    page = visit(report, "#/question?run=second&task=choices/test&id=choices-3&t=4")
    slide(page, 0.32)
    grid = choices.grid(1)[3]
    assert phi(page) == pytest.approx(grid[6] + 0.4 * (grid[7] - grid[6]), rel=1e-5)


def test_the_utility_is_the_current_one_plus_the_gain(visit, report):
    page = visit(report, ADDRESS.format(row=2, t=4))
    values = stored(report, 2, 4)
    slide(page, 0)
    shown = page.locator("#utility").inner_text().replace("−", "-")
    assert float(shown) == pytest.approx(values["utility_before"], rel=5e-3)


def token_rows(report, run, row, transition):
    frame = StoredRun(report.parent / run).tokens.collect()
    return frame.filter(pl.col("row") == row, pl.col("transition") == transition)


def test_tokens_are_tinted_from_their_own_grids(visit, report):
    page = visit(report, ADDRESS.format(row=4, t=4))
    gains = token_rows(report, "first", 4, 4)
    marks = page.locator(".words-text.tokens .token")
    assert marks.count() == gains.height
    for alpha, at in ((1.0, 20), (0.25, 5)):
        slide(page, alpha)
        shown = marks.evaluate_all("(all) => all.map((e) => Number(e.dataset.gain))")
        expected = gains["gain"].to_numpy() if alpha == 1 else gains["grid_gain"].list.get(at).to_numpy()
        np.testing.assert_allclose(shown, expected, rtol=1e-6)
        classes = marks.evaluate_all("(all) => all.map((e) => e.classList.contains('up'))")
        strong = np.abs(expected) > 0.01
        assert np.array_equal(np.array(classes)[strong], (expected > 0)[strong])


def test_tokens_stand_where_the_run_says_even_after_wide_characters(visit, report, choices):
    page = visit(report, "#/question?run=second&task=choices/test&id=choices-0&t=4")
    words = page.locator(".option").nth(2).locator(".token").all_text_contents()
    assert words == [" green", " 😀", " one"]


def test_options_show_their_scores_at_both_ends(visit, report):
    page = visit(report, "#/question?run=second&task=choices/test&id=choices-6&t=2")
    options = page.locator(".option")
    assert options.count() == 4
    assert page.locator(".option.right").get_attribute("aria-label") == "Option C, the right one"
    frame = StoredRun(report.parent / "second").depths
    scores = frame.filter(pl.col("row") == 6, pl.col("depth").is_in([2, 3])).sort("depth")["option_scores"].to_list()
    text = options.nth(1).locator(".scores").inner_text().replace("−", "-").replace("✓", "")
    before, after = text.replace("nats per token", "").split("→")
    assert float(before) == pytest.approx(scores[0][1], rel=5e-3)
    assert float(after) == pytest.approx(scores[1][1], rel=5e-3)


def test_a_link_opens_the_same_scale(visit, report):
    page = visit(report, ADDRESS.format(row=8, t=3))
    slide(page, 0.45)
    again = visit(report, page.url[page.url.index("#") :])
    assert again.locator("#alpha").input_value() == "0.45"
    assert phi(again) == phi(page)


def test_presets_jump_to_named_scales(visit, report, riddles):
    page = visit(report, ADDRESS.format(row=8, t=4))
    page.get_by_role("button", name="Quarter").click()
    assert phi(page) == np.float32(riddles.grid(1)[8, 5])
    page.get_by_role("button", name="Full").click()
    assert phi(page) == np.float32(riddles.grid(1)[8, 20])


def test_bounds_and_boundary_are_drawn_where_they_are_known(visit, report, riddles):
    row = int(np.flatnonzero(riddles.outcome(1) == 3)[0])
    page = visit(report, ADDRESS.format(row=row, t=4))
    text = page.locator(".step-panel").inner_text()
    assert "what the curvature bounds allow" in text
    assert "Boundary r₁" in text
    assert "Safe range" in text
    assert page.locator(".step-panel svg polygon").count() == 1
    assert "The direction was right, the step too long." in page.locator(".verdict").inner_text()


def test_the_same_question_at_another_update(visit, expect, report):
    page = visit(report, ADDRESS.format(row=3, t=4))
    page.locator(".chip", has_text="3→4").click()
    expect(page.locator(".chip[aria-current]")).to_contain_text("3→4")
    assert "t=3" in page.url


def test_a_quick_run_has_ends_and_no_slider(visit, page_of, synthetic):
    made = synthetic.Made([synthetic.Question("Why?", ["Because."])] * 3, level="quick", tokens=False)
    page = visit(page_of(made), "#/question?run=run&task=riddles/test&id=riddles-1&t=4")
    assert page.locator("#alpha").is_disabled()
    assert phi(page) == np.float32(made.path(1, 1.0)[1])


def test_tokens_without_a_place_in_the_text_are_a_strip(visit, page_of, synthetic):
    made = synthetic.Made([synthetic.Question("Why?", ["Because it is so."])] * 2, spans=False)
    page = visit(page_of(made), "#/question?run=run&task=riddles/test&id=riddles-0&t=4")
    assert page.locator(".token-strip .token").count() == 4


def test_python_says_the_same_sentence(visit, report, riddles):
    for outcome in sorted(set(riddles.outcome(1).tolist())):
        row = int(np.flatnonzero(riddles.outcome(1) == outcome)[0])
        page = visit(report, ADDRESS.format(row=row, t=4))
        assert (
            page.locator(".verdict").inner_text() == Run(report.parent / "first").question(f"riddles-{row}", 4).verdict
        )
