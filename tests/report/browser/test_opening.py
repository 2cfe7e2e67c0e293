"""The page opens from disk, says what it is about, and asks nobody for anything."""

import re

import pytest

VIEWS = ("overview", "questions", "studies", "provenance")


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_opens_without_errors_or_requests(visit, report, view):
    page = visit(report, f"#/{view}")
    assert page.locator("main h1").count() == 1
    assert page.get_attribute("nav.views a[aria-current]", "data-view") == view


def test_random_weights_are_said_at_the_top(visit, report):
    page = visit(report)
    warning = page.locator("#warnings")
    assert "drawn has random weights" in warning.inner_text()
    assert warning.bounding_box()["y"] < 120


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


def test_choosing_an_update_shows_its_numbers(visit, report, riddles):
    page = visit(report)
    card = page.locator(".set-card").first
    card.locator("label.update").first.click()
    assert "Outcomes of 3→4" in card.inner_text()
    progressing = int((riddles.outcome(0) == 0).sum())
    assert f"{progressing} progressing" in card.inner_text()


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
    refusals = [visit.errors.pop() for _ in range(len(visit.errors))]
    assert len(refusals) == 1
    assert "Content Security Policy" in refusals[0]
    policy = page.get_attribute("meta[http-equiv]", "content")
    assert re.match(r"default-src 'none'; script-src 'sha256-[^ ]+'; style-src 'sha256-[^ ]+'; img-src data:;", policy)


def test_an_unknown_question_says_so(visit, report):
    page = visit(report, "#/question?run=first&task=riddles/test&id=nowhere&t=4")
    assert page.locator("main h1").inner_text() == "No such question"


def test_provenance_is_in_words(visit, report):
    page = visit(report, "#/provenance")
    text = page.locator("main").inner_text()
    assert "none were read: they are random" in text
    assert "states in bfloat16, readout in float32" in text


def test_studies_show_tables_and_figures(visit, report):
    page = visit(report, "#/studies?study=all")
    assert page.locator("table.sheet").count() > 10
    assert page.locator(".drawing svg").count() >= 4
    # Neither model is one of the paper's: nothing of theirs reproduces or refutes a published cell.
    assert "published cells" not in page.locator("main").inner_text()


def test_a_model_of_the_paper_stands_beside_its_published_cells(visit, page_of, synthetic):
    made = synthetic.Made(
        [synthetic.Question("q", ["a b"])] * 6,
        name="gsm8k",
        model={"name": "ByteDance/Ouro-1.4B", "spec": "ByteDance/Ouro-1.4B"},
    )
    page = visit(page_of(made), "#/studies?study=compare")
    assert "published cells have a counterpart" in page.locator("main").inner_text()


def test_a_decline_before_the_best_depth_is_marked(visit, page_of, synthetic):
    made = synthetic.Made([synthetic.Question("q", ["a"])] * 12, tokens=False)
    # Down, then up to a plateau: the decline lies among the depths that the closer plot leaves out.
    made.utility[:] = [-2.0, -3.0, -1.0, -0.5, -0.499, -0.501]
    made.utility += 1e-3 * made.A[1][:, None]
    for at, transition in enumerate(made.transitions):
        here = made.depths.index(transition)
        made.A[at] = made.utility[:, here + 1] - made.utility[:, here]
        made.Q[at] = made.R[at] = 0.0
    page = visit(page_of(made))
    assert page.locator(".set-card .chart").count() == 2
    assert page.locator(".set-card .chart").first.get_by_text("clearly lower").count() == 1
    assert page.locator(".set-card .chart").last.get_by_text("best").count() == 1
