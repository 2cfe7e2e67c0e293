"""The page opens from disk, says what it is about, and asks nobody for anything."""

import re

import numpy as np

from loopscope.stats import Bootstrap
from loopscope.store.writer import open_or_create

VIEWS = ("overview", "questions", "lens", "studies", "provenance")


def test_overview_shows_both_runs_with_their_numbers(visit, report, riddles):
    page = visit(report)
    assert page.locator(".set-card").count() == 2
    card = page.locator(".set-card").first
    finite = int((riddles.outcome(1) == 3).sum())
    assert f"{finite} finite-step failure" in card.inner_text()
    assert [group.locator(".step dt").all_inner_texts() for group in card.locator(".steps").all()] == [
        ["Full step", "Quarter step"],
        ["Quadratic step", "Better end", "Best of five"],
        ["Full step", "Quarter step"],
        ["Safe step", "Best scale"],
    ]
    heads = card.locator(".step-group").all_inner_texts()
    assert [head.split()[0] for head in heads] == ["Needs", "Uses", "Needs", "Uses"]
    own = int(((riddles.A[1] > 0) & (riddles.Q[1] < 0)).sum())
    assert f"a safe step exists: {own} of 30 questions" in card.inner_text()


def test_it_opens_with_a_measured_path_that_rises_and_falls(visit, expect, report, riddles):
    page = visit(report)
    figure = page.locator(".opening-figure")
    points = figure.locator("polyline.measured").get_attribute("points").replace(",", " ").split()
    heights = -np.array(points[1::2], dtype=float)
    assert heights.argmax() not in (0, 20)
    assert heights[20] < heights[0]
    href = figure.locator("a").get_attribute("href")
    row, at = int(re.search(r"riddles-(\d+)", href)[1]), riddles.transitions.index(int(re.search(r"t=(\d)", href)[1]))
    expected = np.polyval(np.polyfit(riddles.grid(at)[row], heights, 1), riddles.grid(at)[row])
    np.testing.assert_allclose(heights, expected, atol=0.1)
    figure.locator("a").click()
    expect(page.locator(".question-head h1")).to_contain_text(f"riddles-{row}")
    assert riddles.outcome(at)[row] == 3


def test_the_opening_says_what_was_found_and_leads_to_the_questions(visit, expect, report, riddles):
    page = visit(report)
    at = 1 if "loop 4→5" in page.locator("h1").inner_text() else 0
    failures, harmful = int((riddles.outcome(at) == 3).sum()), int((riddles.path(at, 1.0) < 0).sum())
    assert f"goes too far on {failures} of 30 questions" in page.locator("h1").inner_text()
    lead = page.locator(".opening .lead").inner_text()
    assert lead.startswith(f"It makes {harmful} of 30 references less likely")
    assert f"{failures} of these updates" in lead
    findings = page.locator(".findings li").all_inner_texts()
    assert [text.split(".")[0] for text in findings] == ["some/looped-model on riddles test", "drawn on choices test"]
    page.get_by_role("link", name=f"All {failures} finite-step failures").click()
    expect(page.locator(".table-head [role=status]")).to_have_text(f"{failures} updates")


def test_the_chosen_update_is_in_the_address_and_back_undoes_it(visit, expect, report):
    page = visit(report)
    card = page.locator(".set-card").first
    before = card.locator("input[type=radio]:checked").input_value()
    other = "3" if before == "4" else "4"
    card.locator("label.update", has=page.locator(f"input[value='{other}']")).click()
    expect(card).to_contain_text(f"Outcomes of {other}→")
    again = visit(report, page.url[page.url.index("#") :])
    expect(again.locator(".set-card").first).to_contain_text(f"Outcomes of {other}→")
    page.go_back()
    expect(page.locator(".set-card").first).to_contain_text(f"Outcomes of {before}→")
    assert "report.html" in page.url


def test_back_returns_to_where_the_page_was_left(visit, expect, report, wait_until):
    page = visit(report)
    page.locator(".how-to-read").scroll_into_view_if_needed()
    wait_until(page, "scrollY > 300")
    left = page.evaluate("scrollY")
    page.locator(".set-card .outcomes a").last.evaluate("(link) => link.click()")
    expect(page.locator("main")).to_have_attribute("data-view", "questions")
    wait_until(page, "scrollY === 0")
    page.go_back()
    expect(page.locator("main")).to_have_attribute("data-view", "overview")
    wait_until(page, f"Math.abs(scrollY - {left}) < 5")


def test_no_script_but_the_pages_own_can_run(visit, report):
    page = visit(report)
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
        }"""
    )
    assert page.evaluate("window.ran") is None
    refusals = [text for wrong, text in page.log if wrong]
    page.log.clear()
    assert len(refusals) == 1
    assert "Content Security Policy" in refusals[0]
    policy = page.get_attribute("meta[http-equiv]", "content")
    assert re.match(r"default-src 'none'; script-src 'sha256-[^ ]+'; style-src 'sha256-[^ ]+'; img-src data:;", policy)


def test_an_unknown_question_says_so(visit, report):
    page = visit(report, "#/question?run=first&task=riddles/test&id=nowhere&t=4")
    assert page.locator("main h1").inner_text() == "No such question"


def test_a_model_of_the_paper_stands_beside_its_published_cells(visit, page_of, synthetic):
    made = synthetic.Made(
        [synthetic.Question("q", ["a b"])] * 6,
        name="gsm8k",
        model={"name": "ByteDance/Ouro-1.4B", "spec": "ByteDance/Ouro-1.4B"},
    )
    page = visit(page_of(made), "#/studies?study=compare")
    assert "published cells have a counterpart" in page.locator("main").inner_text()


def test_a_run_that_is_going_on_says_so(visit, expect, tmp_path, synthetic, without_figures):
    made = synthetic.Made([synthetic.Question(f"Riddle {row}", ["a b"]) for row in range(12)], unit_size=4)
    manifest = synthetic.manifest_of(made)
    with open_or_create(tmp_path / "run", manifest) as writer:
        unit = writer.pending()[0]
        writer.commit(unit, synthetic.tables_of(made, manifest, unit))
    page = visit(without_figures([tmp_path / "run"], tmp_path / "report.html", Bootstrap(resamples=20)), "#/questions")
    expect(page.locator("#warnings")).to_contain_text("run is unfinished: 4 of 12 questions are measured so far")
    expect(page.locator(".table-head [role=status]")).to_have_text("8 updates")
