"""The page for everyone: keyboard alone, dark, narrow, printed."""

import re

import pytest

VIEWS = (
    "#/overview",
    "#/questions",
    "#/question?run=first&task=riddles/test&id=riddles-4&t=4",
    "#/question?run=second&task=choices/test&id=choices-4&t=4",
    "#/question?run=first&task=riddles/test&id=riddles-4&t=4&token=1",
    "#/lens?run=first&task=riddles/test&id=riddles-4",
    "#/studies?study=table-mechanism",
    "#/studies?study=figure-scale-prediction",
    "#/studies?study=missing",
    "#/provenance",
)


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def channels(page):
    return map(int, re.findall(r"\d+", background(page)))


def test_dark_follows_the_system(visit, report):
    light, dark = (visit(report, color_scheme=scheme) for scheme in ("light", "dark"))
    assert sum(channels(light)) > 700
    assert sum(channels(dark)) < 150


@pytest.mark.parametrize("view", VIEWS)
def test_a_narrow_window_needs_no_sideways_scrolling(visit, report, view):
    page = visit(report, view, viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_keyboard_alone_reaches_a_question_and_moves_its_slider(visit, report):
    page = visit(report)

    def tab_to(test, most=80):
        for _ in range(most):
            page.keyboard.press("Tab")
            if page.evaluate(f"(() => {{ const e = document.activeElement; return {test} }})()"):
                return
        raise AssertionError(f"no element with {test} within {most} tabs")

    tab_to("e.dataset.view === 'questions'")
    page.keyboard.press("Enter")
    page.wait_for_selector("table.records")
    tab_to("e.matches('table.records a')")
    page.keyboard.press("Enter")
    page.wait_for_selector("#alpha")
    tab_to("e.id === 'alpha'")
    page.keyboard.press("Home")
    assert page.locator("output").inner_text() == "0"
    page.keyboard.press("ArrowRight")
    assert page.locator("output").inner_text() == "0.01"
    assert "gain" in page.locator("#alpha").get_attribute("aria-valuetext")


def test_paper_is_white_whatever_the_screen_shows(visit, report):
    page = visit(report, "#/overview", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert background(page) == "rgb(255, 255, 255)"
