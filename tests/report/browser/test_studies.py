"""The view of studies: contents, filters and addresses, copies, drawings in the page's colours, no wall."""

import copy
import csv
import io
import re

import pytest

from loopscope.report.pack import pack, unpack

CLIPBOARD = {"permissions": ["clipboard-read", "clipboard-write"]}


@pytest.fixture(scope="module")
def packed(report):
    return unpack(re.search(r'id="studies">([^<]*)<', report.read_text(encoding="utf-8"))[1])[1]


def test_one_study_at_a_time_beside_contents_that_stay(visit, expect, report, packed):
    page = visit(report, "#/studies")
    links = page.locator(".contents a")
    studies = len(packed["figures"]) + len(packed["tables"]) + bool(packed["missing"])
    assert links.count() == studies + 1
    assert page.locator(".study").count() == 1
    page.locator(".contents").get_by_role("link", name=packed["tables"][0]["title"], exact=True).click()
    expect(page.locator(".study h2")).to_have_text(packed["tables"][0]["title"])
    assert page.url.endswith(f"study=table-{packed['tables'][0]['name']}")
    page.go_back()
    expect(page.locator(".study h2")).to_have_text(packed["figures"][0]["title"])
    page.goto(f"{report.as_uri()}#/studies?study=all")
    expect(page.locator(".study")).to_have_count(studies)
    page.evaluate("scrollTo(0, 3000)")
    assert 0 < page.locator(".contents").bounding_box()["y"] < 100


def test_filters_choose_run_task_and_update_in_the_address(visit, expect, report):
    page = visit(report, "#/studies?study=table-mechanism")
    lines = page.locator("table.sheet tbody tr")
    expect(lines).to_have_count(4)
    page.get_by_label("Update").select_option("4")
    expect(lines).to_have_count(2)
    assert "t=4" in page.url
    page.get_by_label("Run").select_option("second")
    expect(lines).to_have_count(1)
    assert "drawn" in lines.inner_text()
    copied = visit(report, page.url.partition(".html")[2])
    assert copied.locator("table.sheet tbody tr").count() == 1
    page.go_back()
    expect(lines).to_have_count(2)
    assert page.get_by_label("Run").input_value() == ""


def test_a_filter_takes_whole_columns_of_a_table_that_stands_side_by_side(visit, report):
    heads = "table.sheet thead tr:last-child th"
    both = visit(report, "#/studies?study=table-diagnostics").locator(heads).all_inner_texts()
    one = visit(report, "#/studies?study=table-diagnostics&run=second&t=4").locator(heads).all_inner_texts()
    assert any("riddles" in head for head in both)
    assert [head for head in one if "\n" in head] == [head for head in both if "choices" in head and "4→5" in head][:2]


def test_what_no_row_passes_says_so(visit, report):
    page = visit(report, "#/studies?study=table-refined-optima&run=second")
    assert page.locator(".study .empty").inner_text() == "No row of this table passes the filter."


def test_tables_are_copied_as_latex_and_csv(visit, expect, report, packed, wait_until):
    page = visit(report, "#/studies?study=table-mechanism&t=4", **CLIPBOARD)
    page.get_by_role("button", name="Copy CSV").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    rows = list(csv.DictReader(io.StringIO(page.evaluate("navigator.clipboard.readText()"))))
    assert {row["transition"] for row in rows} == {"4"}
    assert len(rows) == 2
    page.get_by_role("button", name="Copy LaTeX").click()
    expect(page.get_by_role("button", name="Copied").first).to_be_visible()
    mechanism = next(table for table in packed["tables"] if table["name"] == "mechanism")
    wait_until(page, "async () => (await navigator.clipboard.readText()).includes('toprule')")
    assert page.evaluate("navigator.clipboard.readText()").replace("\r\n", "\n") == mechanism["latex"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_are_drawn_in_the_colours_of_the_page(visit, report, packed, scheme):
    pytest.importorskip("matplotlib")
    assert all("drawing" in figure for figure in packed["figures"])
    page = visit(report, "#/studies?study=figure-direction-progress", color_scheme=scheme)
    colours = page.evaluate(
        """() => {
          const style = (element) => getComputedStyle(element);
          const svg = document.querySelector(".drawing svg");
          return { text: style(svg).fill, back: style(svg.querySelector("path")).fill,
                   ink: style(document.body).color, surface: style(document.querySelector(".study")).backgroundColor };
        }"""
    )
    assert colours["text"] == colours["ink"]
    assert colours["back"] == colours["surface"]
    assert page.locator(".drawing svg [style], .drawing script").count() == 0


def test_hundreds_of_lines_are_turned_over(visit, expect, report, packed, tmp_path):
    """The cells of a comparison with the paper are thousands: here a table of the page, many times over."""
    many = copy.deepcopy(packed)
    sheet = next(table for table in many["tables"] if table["name"] == "mechanism")["sheets"][0]
    sheet["lines"], sheet["places"] = sheet["lines"] * 1500, sheet["places"] * 1500
    html = re.sub(r'(id="studies">)[^<]*<', lambda found: f"{found[1]}{pack({}, many)}<", report.read_text("utf-8"))
    path = tmp_path / "report.html"
    path.write_text(html, encoding="utf-8")
    page = visit(path, "#/studies?study=table-mechanism&t=4")
    assert "1–100 of 3,000 lines" in page.locator(".study .pager").inner_text()
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".study .pager")).to_contain_text("101–200 of 3,000 lines")
    assert "p=2" in page.url
    page.goto(f"{path.as_uri()}#/studies?study=all")
    expect(page.locator("main")).to_contain_text("Not in these runs")
    lines = page.locator("table.sheet").evaluate_all(
        "(all) => all.map((sheet) => sheet.querySelectorAll('tbody tr').length)"
    )
    assert max(lines) == 100
    assert page.evaluate("document.documentElement.scrollHeight") < 40_000


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
