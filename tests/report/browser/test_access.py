"""The page for everyone: keyboard alone, dark, narrow, printed; axe-core finds nothing serious."""

import shutil
import subprocess

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
AXE = "axe-core@4.10.2"


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The source of axe-core, fetched for the test alone."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("the accessibility check needs npm to fetch axe-core")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder), AXE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not fetch axe-core within a minute")
    source = folder / "node_modules" / "axe-core" / "axe.min.js"
    if done.returncode or not source.exists():
        pytest.skip(f"npm cannot fetch axe-core: {done.stderr.strip().splitlines()[:1]}")
    return source.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(visit, report, axe, view, scheme):
    # The page's own policy would refuse a foreign script, which is the point of it; only this test lifts it.
    page = visit(report, view, color_scheme=scheme, bypass_csp=True)
    page.add_script_tag(content=axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        (violation["id"], node["html"][:160], node["failureSummary"][:240])
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"][:3]
    ]
    assert serious == []


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_dark_follows_the_system_and_can_be_chosen(visit, report):
    light, dark = visit(report, color_scheme="light"), visit(report, color_scheme="dark")
    assert background(light) != background(dark)
    button = light.locator("#theme")
    button.click()
    button.click()
    assert button.inner_text() == "Dark"
    assert background(light) == background(dark)


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


def test_updates_are_chosen_with_arrow_keys(visit, report):
    page = visit(report)
    card = page.locator(".set-card").first
    card.locator("input[type=radio]:checked").focus()
    before = card.locator("input[type=radio]:checked").input_value()
    page.keyboard.press("ArrowUp")
    after = card.locator("input[type=radio]:checked").input_value()
    assert {before, after} == {"3", "4"}
    assert f"Outcomes of {after}→" in card.inner_text()


def test_paper_is_white_whatever_the_screen_shows(visit, report):
    page = visit(report, "#/overview", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert background(page) == "rgb(255, 255, 255)"


def test_paper_is_filled(visit, report):
    """The opening fits on the first sheet, and nothing that is larger than a sheet refuses to be broken."""
    page = visit(report, "#/overview", viewport={"width": 700, "height": 1000})
    page.emulate_media(media="print")
    assert page.locator(".opening").bounding_box()["height"] < 800
    unbroken = page.evaluate(
        """[...document.querySelectorAll("main *")]
          .filter((element) => getComputedStyle(element).breakInside !== "auto" && element.clientHeight > 500)
          .map((element) => element.className)"""
    )
    assert unbroken in ([], ["opening"], ["opening", "card opening-figure"])
