"""Words of benchmarks and checkpoints stay words, whatever they contain."""

from urllib.parse import urlencode

import pytest

from loopscope.stats import Bootstrap

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
        page.goto(hostile.as_uri() + f"#/{view}{'?study=table-mechanism' * (view == 'studies')}")
        expect(page.locator(f"main[data-view={view}]")).to_be_visible()
        assert page.evaluate("window.pwned") is None
        assert page.locator("main img:not(.drawing), main script, main i:not(.path-legend i), main b").count() == 0


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_shown_letter_by_letter(visit, hostile, name):
    page = visit(hostile, "#/questions")
    page.locator("table.records a", has_text=f"({name})").first.click()
    page.wait_for_selector(".question-head")
    assert page.locator(".words-panel > .words-text").first.text_content() == f"{SAMPLES[name]} ({name})"
    assert page.locator(".option .words-text").first.text_content() == SAMPLES[name]
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


@pytest.mark.slow
def test_a_megabyte_of_text_is_text(visit, page_of, synthetic):
    long = "All work and no play. </script> " * 32768
    path = page_of(synthetic.Made([synthetic.Question(long, ["short"])] * 2, tokens=False))
    page = visit(path, "#/question?run=run&task=riddles/test&id=riddles-0&t=4")
    block = page.locator(".words-panel > .words-text").first
    assert len(block.text_content()) == 12000
    page.get_by_role("button", name="Show all").click()
    assert block.text_content() == long


@pytest.fixture(scope="module")
def named(tmp_path_factory, synthetic, without_figures):
    """Two runs whose folders, models and tasks have names that a lookup or a layout could stumble over."""
    folder = tmp_path_factory.mktemp("named")
    names = {
        "constructor": ("toString", "__proto__"),
        "r" * 200: ("long-" * 1000, "n" * 200),
        "$x_{": ("$\\frac{$ \u202e 100% #1 &amp;", "<!--style-->"),
    }
    for run, (model, task) in names.items():
        made = synthetic.Made([synthetic.Question("q", ["a b"])] * 6, name=task, model={"name": model, "spec": model})
        synthetic.write_run(folder / run, made)
    page = without_figures([folder / run for run in names], folder / "report.html", Bootstrap(resamples=20))
    return page, {run: task for run, (_, task) in names.items()}


@pytest.mark.parametrize("width", [390])
def test_any_name_is_shown_within_the_window(visit, expect, named, width):
    path, tasks = named
    page = visit(path, viewport={"width": width, "height": 900})
    views = ["overview", "questions", "studies?study=table-mechanism", "provenance"]
    for run, task in tasks.items():
        query = urlencode({"run": run, "task": f"{task}/test", "id": f"{task}-3", "t": 4})
        views.append(f"question?{query}")
    for view in views:
        page.goto(f"{path.as_uri()}#/{view}")
        expect(page.locator(f"main[data-view={view.partition('?')[0]}] h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("h1").inner_text() != "No such question"
    page.goto(f"{path.as_uri()}#/provenance")
    expect(page.locator("main")).to_contain_text("$\\frac{$ ⟨U+202E⟩ 100% #1 &amp;")
