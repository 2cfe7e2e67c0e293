"""The lens: a map of tokens and loops that says what is stored, by mouse, keyboard and finger, for options too."""

from urllib.parse import urlencode

import polars as pl
import pytest

from loopscope.store import StoredRun

HOSTILE = (
    "</script><script>window.pwned = 1</script>",
    '<img src=x onerror="window.pwned = 1">',
    "\u202egnp.exe",
    "javascript:window.pwned=1",
    "__proto__",
)
LONG = " ".join(f"word{at}" for at in range(80))


def address(run="run", task="riddles/test", **more):
    return "#/lens?" + urlencode({"run": run, "task": task, **more})


@pytest.fixture(scope="module")
def solutions(page_of, synthetic):
    """Six solutions, one of them long; words of the vocabulary that try to become markup."""
    texts = ["It is nine apples.\nAnswer 9", LONG, *(f"the answer is {row} and no other" for row in range(4))]
    questions = [synthetic.Question(f"Riddle {row}", [text]) for row, text in enumerate(texts)]
    return page_of(synthetic.Made(questions, lens=5, others=(*HOSTILE, " the", "\n", "\t")))


@pytest.fixture(scope="module")
def options(page_of, synthetic):
    questions = [
        synthetic.Question(f"Choice {row}", [f" red {row}", " blue one", " green 😀 one"], row % 3) for row in range(4)
    ]
    return page_of(synthetic.Made(questions, transitions=(2, 4), name="choices", lens=3, model={"trained_depth": None}))


def stored(path, row):
    run = StoredRun(path.parent / "run")
    frame = run.trace.filter(pl.col("row") == row).collect().sort("option", "token", "depth")
    return run.vocabulary, frame


def plain(text):
    """Without the marks of the map."""
    return text.replace("␣", " ").replace("↵", "\n").replace("⇥", "\t")


def test_the_map_says_what_is_stored(visit, solutions):
    page = visit(solutions, address(id="riddles-0"))
    vocabulary, frame = stored(solutions, 0)
    tokens = frame.filter(pl.col("depth") == 1)
    heads = page.locator("tbody th.reference").all_text_contents()
    assert [plain(head) for head in heads] == [vocabulary[each] for each in tokens["token_id"]]
    cells = page.locator("td.cell")
    assert cells.count() == frame.height
    shown = page.locator("td.cell .says").all_text_contents()
    for text, ids in zip(shown, frame["lens_ids"].to_list(), strict=True):
        expected = vocabulary[ids[0]]
        assert plain(text) == expected or "⟨U+202E⟩" in text
    weights = cells.evaluate_all("(all) => all.map((cell) => parseFloat(cell.style.getPropertyValue('--weight')))")
    assert weights == pytest.approx((58 * frame["log_prob"].exp()).to_list(), abs=0.06)
    right = frame.filter(pl.col("rank") == 1).group_by("depth").len().sort("depth")
    counts = dict(right.iter_rows())
    row = page.locator("tr.count-row td").all_inner_texts()
    assert row == [f"{counts.get(depth, 0)}/{tokens.height}" for depth in range(1, 7)]


def test_flips_and_overshoots_are_marked_where_they_happen(visit, solutions):
    page = visit(solutions, address(id="riddles-0"))
    _, frame = stored(solutions, 0)
    expected = []
    for _, token in frame.group_by("token", maintain_order=True):
        before = None
        for cell in token.iter_rows(named=True):
            changed = before is not None and before["top_id"] != cell["top_id"]
            won, lost = changed and cell["rank"] == 1, changed and before["rank"] == 1
            short = max(cell["gains"] or [-1.0])
            over = before is not None and cell["log_prob"] < before["log_prob"] - 1e-4 and short > 1e-4
            expected.append({name for name, on in (("won", won), ("lost", lost), ("overshot", over)) if on})
            before = cell
    classes = page.locator("td.cell").evaluate_all("(all) => all.map((cell) => [...cell.classList])")
    assert [set(each) & {"won", "lost", "overshot"} for each in classes] == expected
    assert {"won", "lost", "overshot"} <= set().union(*expected)


def test_hovering_shows_the_candidates(visit, solutions):
    page = visit(solutions, address(id="riddles-0"))
    vocabulary, frame = stored(solutions, 0)
    cell = frame.row(9, named=True)
    page.locator("td.cell").nth(9).hover()
    lines = page.locator(".candidates li")
    shown = [plain(text).removesuffix("reference") for text in lines.locator(".says").all_text_contents()]
    assert shown[:5] == [vocabulary[each].replace("\u202e", "⟨U+202E⟩") for each in cell["lens_ids"]]
    numbers = [text.strip("<>% ") for text in lines.locator(".number").all_inner_texts()]
    assert [float(number) for number in numbers[:5]] == pytest.approx([100 * p for p in cell["lens_probs"]], abs=0.11)
    assert lines.count() == 5 + (cell["rank"] > 5)
    assert page.locator(".candidates .is-reference").count() == 1
    assert str(cell["rank"]) in page.locator(".lens-detail dl").inner_text()


def test_a_click_opens_the_path_of_the_update_at_that_token(visit, expect, solutions):
    page = visit(solutions, address(id="riddles-0"))
    # Second token, fifth loop: the update 4→5.
    page.locator("td.cell").nth(6 + 4).click()
    expect(page.locator(".question-head")).to_be_visible()
    assert "t=4" in page.url
    assert "token=1" in page.url
    assert page.locator(".token.chosen").text_content() == " is"
    assert "along 4→5" in page.locator(".chosen-token").inner_text()
    page.locator(".chosen-token a").click()
    expect(page.locator("td.cell.chosen")).to_have_count(1)
    assert page.locator(".lens-detail h2").text_content() == "Token ␣is after 5 loops"


def test_the_keyboard_walks_the_map_and_opens_a_path(visit, expect, solutions):
    page = visit(solutions, address(id="riddles-0"))
    assert page.locator("td.cell[tabindex='0']").count() == 1
    page.locator("td.cell").nth(0).focus()
    for key in ("ArrowDown", "End", "ArrowLeft", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement === document.querySelectorAll('td.cell')[4]")
    assert "depth=5" in page.url
    assert "after 5 loops it would say" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Enter")
    expect(page.locator(".question-head")).to_be_visible()
    page.go_back()
    expect(page.locator(".lens-detail h2")).to_contain_text("after 5 loops")


def test_a_finger_looks_before_it_opens(visit, expect, solutions):
    page = visit(solutions, address(id="riddles-0"), viewport={"width": 390, "height": 844}, has_touch=True)
    page.locator("td.cell").nth(4).tap()
    expect(page.locator(".lens-detail h2")).to_contain_text("after 5 loops")
    assert page.locator("main").get_attribute("data-view") == "lens"
    page.get_by_role("link", name="Open the path of 4→5").tap()
    expect(page.locator("main[data-view=question]")).to_be_visible()


def test_a_strip_for_every_option_with_its_score_and_the_choice(visit, options):
    page = visit(options, address(task="choices/test", id="choices-1"))
    _, frame = stored(options, 1)
    assert page.locator("tr.option-row").count() == 3
    assert page.locator("tr.option-row.right").inner_text().startswith("Option B")
    scores = frame.group_by("option", "depth").agg(pl.col("log_prob").mean()).sort("option", "depth")
    best = scores.sort("log_prob").group_by("depth").last().sort("depth")["option"].to_list()
    for option in range(3):
        cells = page.locator("tr.option-row").nth(option).locator("td").all_inner_texts()
        assert ["✓" in cell for cell in cells] == [winner == option for winner in best]
        own = scores.filter(pl.col("option") == option)["log_prob"].to_list()
        shown = [float(cell.replace("−", "-").replace("✓", "")) for cell in cells]
        assert shown == pytest.approx(own, rel=0.006)


def test_a_long_reference_opens_on_what_changes_and_the_choice_is_in_the_address(visit, expect, solutions):
    page = visit(solutions, address(id="riddles-1"))
    rows = page.locator("tbody th.reference")
    changed = rows.count()
    assert 0 < changed < 80
    page.get_by_label("Tokens at which").select_option("all")
    expect(rows).to_have_count(80)
    assert "show=all" in page.url
    page.go_back()
    expect(rows).to_have_count(changed)


def test_questions_follow_each_other_most_lost_answers_first(visit, solutions, wait_until):
    page = visit(solutions, "#/lens")
    run = StoredRun(solutions.parent / "run")
    frame = run.trace.select("row", "token", "depth", "rank").collect()
    at = {depth: frame.filter(pl.col("depth") == depth).sort("row", "token") for depth in (4, 6)}
    lost = at[4].select("row", lost=(at[4]["rank"] == 1) & (at[6]["rank"] != 1)).group_by("row").sum().sort("row")
    most = int(lost["lost"].arg_max())
    assert f"riddles-{most}" in page.locator(".prompt").inner_text()
    assert f"{lost['lost'].max()} right answer" in page.locator(".verdict").inner_text()
    page.get_by_role("link", name="Next").click()
    wait_until(page, "location.hash.includes('id=')")


def test_hostile_words_stay_words(visit, solutions):
    page = visit(solutions, address(id="riddles-1", show="all"))
    text = page.locator("table.lens").inner_text()
    assert any(word[:9] in text for word in HOSTILE)
    for at in range(0, page.locator("td.cell").count(), 41):
        page.locator("td.cell").nth(at).hover()
        assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.pwned") is None
    assert "\u202e" not in page.locator("main").inner_text()


def test_a_question_beyond_the_lens_says_so(visit, tmp_path, synthetic, without_figures):
    from loopscope.stats import Bootstrap

    made = synthetic.Made([synthetic.Question("q", ["a b c"])] * 4, lens=2)
    synthetic.write_run(tmp_path / "run", made)
    path = without_figures([tmp_path / "run"], tmp_path / "report.html", Bootstrap(resamples=5), lens_questions=2)
    page = visit(path, address(id="riddles-3"))
    assert "first 2 questions" in page.locator("main").inner_text()
    assert visit(path, address(id="nowhere")).locator("h1").inner_text() == "No lens here"
