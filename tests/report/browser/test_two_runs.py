"""Two runs side by side: what is paired and shown, choices in the address, keyboard alone, narrow."""

import pytest

from loopscope.report import write_report
from loopscope.stats import Bootstrap
from loopscope.store import StoredRun
from loopscope.studies.run_diff import diff

FEW = Bootstrap(resamples=60)


@pytest.fixture(scope="module")
def two(tmp_path_factory, synthetic):
    """The same thirty questions measured twice, and a run of other ones."""
    folder = tmp_path_factory.mktemp("two")
    questions = [synthetic.Question(f"Riddle {row}: what is it?", [f"It is {row}."]) for row in range(30)]
    for name, seed in (("old", 1), ("new", 2)):
        made = synthetic.Made(questions, seed=seed, transitions=(3, 4), model={"name": f"model-{name}"})
        synthetic.write_run(folder / name, made)
    other = synthetic.Made(questions[:5], name="others", transitions=(4,))
    synthetic.write_run(folder / "apart", other)
    return write_report([folder / name for name in ("old", "new", "apart")], folder / "report.html", FEW)


@pytest.fixture(scope="module")
def found(two):
    return diff(two.parent / "old", two.parent / "new", bootstrap=FEW)


def test_differences_are_those_of_loopscope_diff(visit, two, found):
    page = visit(two, "#/runs?t=4")
    update = next(each for each in found.updates if each.pair.transition == 4)
    for row in update.rows:
        if row.key in ("gain", "share", "sign_quadratic"):
            shown = page.locator("table.pair-differences tr", has_text=row.cells[3]).inner_text()
            assert all(cell in shown for cell in row.cells)
    assert f"{len(update.changed)} of 30 questions have another outcome" in page.locator(".intro").inner_text()


def test_changed_questions_open_in_both_runs(visit, two, found, expect):
    page = visit(two, "#/runs?t=4")
    update = next(each for each in found.updates if each.pair.transition == 4)
    rows = page.locator("table.pair-records tbody tr")
    links = {"old": [], "new": []}
    while True:
        for which, run in (("first", "old"), ("second", "new")):
            links[run] += rows.get_by_role("link", name=which).evaluate_all("(all) => all.map((link) => link.hash)")
        if page.get_by_role("button", name="Next").is_disabled():
            break
        page.get_by_role("button", name="Next").click()
    for run, hashes in links.items():
        ids = sorted(hash.split("id=")[1].split("&")[0] for hash in hashes)
        assert ids == sorted(question.example_id for question in update.changed)
        assert all(f"run={run}&" in hash and "t=4" in hash for hash in hashes)
    rows.first.get_by_role("link", name="second").click()
    expect(page.locator("main[data-view=question]")).to_be_visible()
    page.go_back()
    expect(page.locator("h1")).to_have_text("Two runs on the same questions")


def test_a_number_of_the_matrix_filters_list_and_address(visit, two, found):
    page = visit(two, "#/runs?t=4")
    update = next(each for each in found.updates if each.pair.transition == 4)
    (first, second), count = update.moves.most_common(1)[0]
    page.get_by_role("button", name=f"{count} from {first.label} to {second.label}").click()
    assert f"{count} question" in page.locator(".table-head [role=status]").inner_text()
    assert f"move={int(first)}-{int(second)}" in page.url
    again = visit(two, page.url[page.url.index("#") :])
    assert again.locator("main").inner_text() == page.locator("main").inner_text()


def test_the_update_is_shared_and_in_the_address(visit, two):
    page = visit(two, "#/runs?t=4")
    page.locator("fieldset.pair-updates input[value='3']").check(force=True)
    assert "t=3" in page.url
    assert page.locator("select[data-choice=t]").input_value() == "3"
    assert page.get_by_role("heading", name="Differences of 3→4").is_visible()


def test_the_plot_with_the_keyboard_alone(visit, two, expect):
    page = visit(two, "#/runs?t=4&move=all&x=slope")
    page.locator(".plot canvas").focus()
    page.keyboard.press("ArrowRight")
    old = StoredRun(two.parent / "old").records.filter(transition=4)["slope"].to_numpy()
    announced = page.locator("#announcer").inner_text()
    assert "First −" in announced
    digits = announced.split("First −")[1].split(",")[0].replace("×10⁻", "e-")
    shown = float(digits.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")))
    assert shown == pytest.approx(-old.min(), rel=0.01)
    page.keyboard.press("Enter")
    expect(page.locator("main[data-view=question]")).to_be_visible()
    assert "run=new" in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_telephone(visit, two, scheme):
    page = visit(two, "#/runs?t=4&move=all", viewport={"width": 390, "height": 844}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("table.pair-differences").get_by_text("mean gain of the full step").is_visible()


def test_runs_without_common_questions_are_no_pair(visit, two, report):
    page = visit(two, "#/runs?a=apart&b=old")
    options = page.get_by_label("First run").locator("option").all_inner_texts()
    assert options == ["old (model-old)"]
    assert visit(report).get_by_role("link", name="Two runs").count() == 0
    lonely = visit(report, "#/runs")
    assert "No two runs of this page" in lonely.locator("main").inner_text()


WORDS = ("constructor", "__proto__", "", "NaN", "9", "-1", "0-9", "<b>", "a" * 3000, "%00", "toString")


def test_any_address_of_two_runs_opens(visit, two):
    page = visit(two, "#/runs")
    for name in ("a", "b", "task", "t", "x", "move", "sort", "dir"):
        for word in WORDS:
            text = page.evaluate(
                """async (hash) => {
                  document.getElementById("main").replaceChildren();
                  location.hash = hash;
                  dispatchEvent(new HashChangeEvent("hashchange"));
                  const tick = () => new Promise((done) => setTimeout(done, 5));
                  for (let k = 0; k < 200 && !document.querySelector("main h1"); k++) await tick();
                  return document.querySelector("main h1")?.textContent ?? null;
                }""",
                f"#/runs?{name}={word}",
            )
            assert text == "Two runs on the same questions", (name, word[:20])


def test_what_benchmarks_wrote_stays_text(visit, tmp_path, synthetic):
    hostile = "<img src=x onerror=alert(1)>\u202e</script>"
    questions = [synthetic.Question(f"{hostile} {row}", [f"It is {row}."]) for row in range(6)]
    for name, seed in (("one", 1), ("two", 5)):
        synthetic.write_run(tmp_path / name, synthetic.Made(questions, seed=seed, model={"name": hostile}))
    page = visit(write_report([tmp_path / "one", tmp_path / "two"], tmp_path / "report.html", FEW), "#/runs?move=all")
    assert page.locator("main img").count() == 0
    assert "<img src=x" in page.locator("table.pair-records").inner_text()
    assert "⟨U+202E⟩" in page.locator("table.pair-records").inner_text()
