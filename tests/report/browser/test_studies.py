"""The view of studies: contents and addresses, copies, figures, narrow windows."""

import csv
import io
import re

import pytest

CLIPBOARD = {"permissions": ["clipboard-read", "clipboard-write"]}


@pytest.fixture(scope="module")
def packed(report, unpack):
    return unpack(re.search(r'id="studies">([^<]*)<', report.read_text(encoding="utf-8"))[1])[1]


def test_one_study_at_a_time_beside_contents_that_stay(visit, expect, report, packed):
    page = visit(report, "#/studies")
    links = page.locator(".contents a")
    assert links.count() == len(packed["figures"]) + len(packed["tables"]) + bool(packed["missing"])
    assert page.locator(".study").count() == 1
    page.locator(".contents").get_by_role("link", name=packed["tables"][0]["title"], exact=True).click()
    expect(page.locator(".study h2")).to_have_text(packed["tables"][0]["title"])
    assert page.url.endswith(f"study=table-{packed['tables'][0]['name']}")
    page.go_back()
    expect(page.locator(".study h2")).to_have_text(packed["figures"][0]["title"])


def test_a_table_has_every_line_and_says_once_what_all_lines_share(visit, report, packed):
    table = next(table for table in packed["tables"] if table["name"] == "mechanism")
    page = visit(report, "#/studies?study=table-mechanism")
    lines = page.locator("table.sheet tbody tr")
    assert lines.count() == sum(len(sheet["lines"]) for sheet in table["sheets"]) == 4
    for at, line in enumerate(table["sheets"][0]["lines"]):
        assert lines.nth(at).locator("th, td").all_inner_texts() == line
    alike = visit(report, "#/studies?study=table-bound-selected")
    for sheet in next(each for each in packed["tables"] if each["name"] == "bound-selected")["sheets"]:
        for head, text in sheet["said"]:
            assert head not in sheet["heads"]
            assert text in alike.locator(".said").first.inner_text()


def test_tables_are_copied_as_latex_and_csv(visit, expect, report, packed, wait_until):
    page = visit(report, "#/studies?study=table-mechanism", **CLIPBOARD)
    page.get_by_role("button", name="Copy CSV").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    rows = list(csv.DictReader(io.StringIO(page.evaluate("navigator.clipboard.readText()"))))
    assert [row["transition"] for row in rows] == ["3", "4", "2", "4"]
    page.get_by_role("button", name="Copy LaTeX").click()
    wait_until(page, "async () => (await navigator.clipboard.readText()).includes('toprule')")
    mechanism = next(table for table in packed["tables"] if table["name"] == "mechanism")
    assert page.evaluate("navigator.clipboard.readText()").replace("\r\n", "\n") == mechanism["latex"]


def test_figures_are_images_inside_the_page_light_on_dark(visit, report, packed):
    pytest.importorskip("matplotlib")
    assert all(figure["image"].startswith("data:image/") for figure in packed["figures"])
    for scheme, changed in (("light", "none"), ("dark", "invert(0.9) hue-rotate(180deg)")):
        image = visit(report, "#/studies?study=figure-direction-progress", color_scheme=scheme).locator("img.drawing")
        assert image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 100
        assert image.evaluate("(image) => getComputedStyle(image).filter") == changed


def test_contents_open_at_the_lower_edge_of_a_narrow_window(visit, expect, report):
    page = visit(report, "#/studies?study=table-mechanism", viewport={"width": 390, "height": 844})
    names = page.locator("table.sheet tbody th").all_inner_texts()
    assert names == [f"{model} · {task} test · {update}" for model, task, update in (
        ("some/looped-model", "riddles", "3→4"), ("some/looped-model", "riddles", "4→5"),
        ("drawn (random weights)", "choices", "2→3"), ("drawn (random weights)", "choices", "4→5"),
    )]  # fmt: skip
    toggle = page.locator(".contents-toggle")
    box = toggle.bounding_box()
    assert box["y"] + box["height"] == pytest.approx(844, abs=2)
    toggle.focus()
    page.keyboard.press("Enter")
    link = page.locator(".contents a", has_text="State, output")
    expect(link).to_be_visible()
    link.click()
    expect(page.locator(".study h2")).to_contain_text("State, output")
    first = page.locator("table.sheet tbody th").first
    left = first.bounding_box()["x"]
    page.locator(".sheet-box").first.evaluate("(box) => { box.scrollLeft = 200; }")
    assert first.bounding_box()["x"] == pytest.approx(left, abs=1)


def test_studies_without_a_row_share_one_line_for_each_reason(visit, report, packed):
    page = visit(report, "#/studies?study=missing")
    reasons = {study["reason"] for study in packed["missing"]}
    assert page.locator(".reasons dd").count() == len(reasons)
    for study in packed["missing"]:
        assert study["name"] in page.locator(".reasons").inner_text()


def test_a_study_prints_alone(visit, report):
    page = visit(report, "#/studies?study=table-mechanism")
    page.emulate_media(media="print")
    assert not page.locator(".contents").is_visible()
    assert page.locator("table.sheet").is_visible()
    assert page.pdf()[:5] == b"%PDF-"
