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
        np.testing.assert_allclose(shown, expected, atol=2e-4 * np.abs(expected).max())
        classes = marks.evaluate_all("(all) => all.map((e) => e.classList.contains('up'))")
        strong = np.abs(expected) > 0.01
        assert np.array_equal(np.array(classes)[strong], (expected > 0)[strong])


def test_tokens_stand_where_the_run_says_even_after_wide_characters(visit, report, choices):
    page = visit(report, "#/question?run=second&task=choices/test&id=choices-0&t=4")
    words = page.locator(".option").nth(2).locator(".token").all_text_contents()
    assert words == [" green", " 😀", " one"]


def option_scores(report, row, depth):
    frame = StoredRun(report.parent / "second").depths
    return frame.filter(pl.col("row") == row, pl.col("depth") == depth)["option_scores"].to_list()[0]


def shown_scores(page):
    return [
        float(each)
        for each in page.locator(".option .score-now [data-value]").evaluate_all(
            "(all) => all.map((e) => e.dataset.value)"
        )
    ]


def test_option_scores_follow_the_slider(visit, report):
    page = visit(report, "#/question?run=second&task=choices/test&id=choices-6&t=2")
    assert page.locator(".option").count() == 4
    assert page.locator(".option.right").get_attribute("aria-label") == "Option C, the right one"
    before, after = option_scores(report, 6, 2), option_scores(report, 6, 3)
    tokens = token_rows(report, "second", 6, 2)
    for alpha, at in ((0.0, 0), (0.25, 5), (0.6, 12), (1.0, 20)):
        slide(page, alpha)
        moved = tokens.group_by("option", maintain_order=True).agg(pl.col("grid_gain").list.get(at).mean())
        between = np.array(before) + moved["grid_gain"].to_numpy()
        expected = {0.0: before, 1.0: after}.get(alpha, between)
        np.testing.assert_allclose(shown_scores(page), expected, rtol=1e-4)
        chosen = page.locator(".option").evaluate_all(
            "(all) => all.map((e) => e.querySelector('.score-now strong') !== null)"
        )
        assert chosen.index(True) == int(np.argmax(expected))
        assert chosen.count(True) == 1
        chance = page.locator(".option .chance").first.get_attribute("aria-label")
        expected_share = np.exp(expected[0]) / np.exp(expected).sum()
        assert float(chance.removeprefix("probability ").removesuffix("%")) == pytest.approx(
            100 * expected_share, abs=0.06
        )


def test_the_plot_is_dragged_and_read(visit, report, riddles):
    page = visit(report, ADDRESS.format(row=8, t=4))
    box = page.locator(".held .chart svg").bounding_box()

    def place(alpha):
        return box["x"] + 62 + alpha * (box["width"] - 62 - 16)

    page.mouse.move(place(0.3), box["y"] + 150)
    assert page.locator(".tip.reading").inner_text().startswith("α 0.3:")
    assert page.locator("output").inner_text() == "1"
    page.mouse.down()
    page.mouse.move(place(0.5), box["y"] + 150)
    page.mouse.up()
    assert page.locator("output").inner_text() == "0.5"
    assert phi(page) == np.float32(riddles.grid(1)[8, 10])
    assert "alpha=0.5" in page.url
    page.mouse.move(place(0.7), box["y"] + 150)
    assert page.locator("output").inner_text() == "0.5"


def test_all_updates_stand_on_one_axis(visit, expect, report, riddles):
    page = visit(report, ADDRESS.format(row=3, t=4))
    links = page.locator(".depth-panel svg[role=group] a")
    expect(links).to_have_count(2)
    # Where one path ends the next begins: the height of both is the utility after four loops.
    ends = [
        [float(part) for part in link.locator("polyline").last.get_attribute("points").replace(",", " ").split()]
        for link in links.all()
    ]
    assert ends[0][-2:] == pytest.approx(ends[1][:2], abs=1e-2)
    values = np.concatenate([riddles.utility[3, 2 + at] + riddles.grid(at)[3] for at in range(2)])
    heights = np.concatenate([each[1::2] for each in ends])
    fitted = np.polyval(np.polyfit(values, heights, 1), values)
    np.testing.assert_allclose(heights, fitted, atol=0.05)
    links.first.click()
    expect(page.locator(".chip[aria-current]")).to_contain_text("3→4")


@pytest.mark.parametrize(("A", "Q", "names"), [(1.0, -1.02, 3)])
def test_names_of_scales_do_not_touch(visit, page_of, synthetic, A, Q, names):
    made = synthetic.Made([synthetic.Question("q", ["a b"])] * 3)
    made.A[:], made.Q[:], made.R[:] = A, Q, 0.0
    page = visit(page_of(made), "#/question?run=run&task=riddles/test&id=riddles-1&t=4")
    texts = page.locator(".step-panel .named text")
    assert texts.count() == names
    boxes = [each.bounding_box() for each in texts.all()]
    for at, one in enumerate(boxes):
        for other in boxes[:at]:
            apart = one["x"] >= other["x"] + other["width"] or other["x"] >= one["x"] + one["width"]
            assert apart or abs(one["y"] - other["y"]) >= 12


def test_the_path_stays_in_view_while_the_tokens_scroll(visit, report):
    page = visit(report, ADDRESS.format(row=8, t=4), viewport={"width": 390, "height": 844})
    page.locator(".depth-panel").scroll_into_view_if_needed()
    box = page.locator(".step-panel").bounding_box()
    assert 0 <= box["y"] < 20
    assert box["height"] < 844 / 2
    assert page.locator("#alpha").is_visible()


def test_a_link_opens_the_same_scale(visit, report):
    page = visit(report, ADDRESS.format(row=8, t=3))
    slide(page, 0.45)
    again = visit(report, page.url[page.url.index("#") :])
    assert again.locator("#alpha").input_value() == "0.45"
    assert phi(again) == phi(page)


def test_bounds_and_boundary_are_drawn_where_they_are_known(visit, report, riddles):
    row = int(np.flatnonzero(riddles.outcome(1) == 3)[0])
    page = visit(report, ADDRESS.format(row=row, t=4))
    text = page.locator(".step-panel").inner_text()
    assert "what the curvature bounds allow" in text
    text = page.locator(".numbers-panel").inner_text()
    assert "Boundary r₁" in text
    assert "Safe range" in text
    assert page.locator(".step-panel svg polygon").count() == 1
    assert "The direction was right, the step too long." in page.locator(".verdict").inner_text()


def test_a_quick_run_has_ends_and_no_slider(visit, page_of, synthetic):
    questions = [synthetic.Question(f"Why {row}?", ["Because."]) for row in range(70)]  # more than a chunk
    made = synthetic.Made(questions, level="quick", tokens=False)
    page = visit(page_of(made), "#/question?run=run&task=riddles/test&id=riddles-66&t=4")
    assert page.locator("#alpha").is_disabled()
    assert phi(page) == np.float32(made.path(1, 1.0)[66])
    assert page.locator(".words-panel > .words-text").first.text_content() == "Why 66?"
    page = visit(page_of(made), "#/questions?q=why+69")
    assert page.locator("table.records tbody tr").count() == 2


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
