"""Words of benchmarks and checkpoints stay words, whatever they contain."""

import pytest

SAMPLES = {
    "script end": "</script><script>window.pwned = 1</script>",
    "image": '<img src=x onerror="window.pwned = 1"><svg onload="window.pwned = 1">',
    "style": "</style></title><body onload=window.pwned=1>",
    "comment": "<!--<script>--> ]]> <!--data-->",
    "template": "${window.pwned = 1} {{constructor.constructor('window.pwned=1')()}}",
    "address": "javascript:window.pwned=1",
    "quotes": "\"' onmouseover='window.pwned=1' \\u003cscript\\u003e",
}


@pytest.fixture(scope="module")
def hostile(page_of, synthetic):
    questions = [synthetic.Question(f"{text} ({name})", [text, f"{text} b"], 0) for name, text in SAMPLES.items()]
    markup = "<b>model</b></script><script>window.pwned = 1</script>"
    return page_of(synthetic.Made(questions, name="</script><i>task", model={"name": markup, "spec": markup}))


def test_samples_stay_text_in_every_view(visit, expect, hostile):
    page = visit(hostile)
    for view in ("overview", "questions", "studies", "provenance"):
        page.goto(hostile.as_uri() + f"#/{view}")
        expect(page.locator(f"main[data-view={view}]")).to_be_visible()
        assert page.evaluate("window.pwned") is None
        assert page.locator("main img:not(.plate img), main script, main i:not(.path-legend i), main b").count() == 0


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_shown_letter_by_letter(visit, hostile, name):
    page = visit(hostile, "#/questions")
    page.locator("table.records a", has_text=f"({name})").first.click()
    page.wait_for_selector(".question-head")
    assert page.locator(".words-panel > .words-text").first.text_content() == f"{SAMPLES[name]} ({name})"
    assert page.locator(".option .words-text").first.text_content() == SAMPLES[name]
    assert page.evaluate("window.pwned") is None


def test_hovering_a_sample_shows_text(visit, hostile):
    page = visit(hostile, "#/questions")
    page.locator("canvas").focus()
    for _ in range(len(SAMPLES)):
        page.keyboard.press("ArrowRight")
        assert page.locator(".tip img, .tip script, .tip svg").count() == 0
    assert page.evaluate("window.pwned") is None


def test_characters_that_reorder_or_hide_text_are_shown_as_code_points(visit, page_of, synthetic):
    text = "safe \u202egnp.exe\u202c \u2066x\u2069 zero\u200bwidth \x00 \x1b[31m tag\U000e0041 joined👩\u200d🔬"
    path = page_of(synthetic.Made([synthetic.Question(text, ["fine"])] * 2))
    page = visit(path, "#/question?run=run&task=riddles/test&id=riddles-0&t=4")
    shown = page.locator(".words-panel > .words-text").first.text_content()
    for code in ("202E", "202C", "2066", "2069", "200B", "0000", "001B", "E0041"):
        assert f"⟨U+{code}⟩" in shown
    assert "👩\u200d🔬" in shown
    assert not any(character in shown for character in "\u202e\u2066\u200b\x00\x1b")


def test_a_megabyte_of_text_is_text(visit, page_of, synthetic):
    long = "All work and no play. </script> " * 32768
    path = page_of(synthetic.Made([synthetic.Question(long, ["short"])] * 2, tokens=False))
    page = visit(path, "#/question?run=run&task=riddles/test&id=riddles-0&t=4")
    block = page.locator(".words-panel > .words-text").first
    assert len(block.text_content()) == 12000
    page.get_by_role("button", name="Show all").click()
    assert block.text_content() == long
