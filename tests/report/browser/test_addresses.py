"""Any address opens a view: its words are looked up among the page's own names and nowhere else."""

import random
from urllib.parse import quote, urlencode

import pytest

PROPERTIES = ("constructor", "toString", "__proto__", "hasOwnProperty", "valueOf", "prototype", "length")
"""Words that every object or array answers to."""
WORDS = (
    *PROPERTIES,
    *("", "main", "undefined", "null", "NaN", "-1", "1e999", "0x4", "9" * 20, "3,", ",,,", "none", "gain", "question"),
    *("%", "%zz", "%00", "?", "&&", "=", "#/#/", "../..", "<b>", "javascript:alert(1)", "first", "riddles/test"),
    *("\u202e", "😀", "\ud83d", "a" * 5000),
)
VIEWS = ("overview", "questions", "question", "lens", "studies", "provenance")
NAMES = (
    *("run", "task", "id", "t", "alpha", "depth", "outcome", "q", "sort", "dir", "study", "p", "option", "token"),
    *("show", *PROPERTIES[:3]),
)

GO = """async (hash) => {
  const main = document.getElementById("main");
  main.replaceChildren();
  location.hash = hash;
  dispatchEvent(new HashChangeEvent("hashchange"));
  const tick = () => new Promise((done) => setTimeout(done, 5));
  for (let tries = 0; tries < 400 && !main.querySelector("h1"); tries++) await tick();
  return main.querySelector("h1")?.textContent ?? null;
}"""


def text(word):
    return quote(word.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("word", PROPERTIES[:3])
def test_a_word_of_every_object_is_no_view(visit, report, word):
    page = visit(report, f"#/{word}")
    assert page.locator("main").get_attribute("data-view") == "overview"


@pytest.mark.parametrize("word", PROPERTIES[:3])
def test_a_word_of_every_object_is_no_column(visit, report, word):
    page = visit(report, f"#/questions?sort={word}")
    plain = visit(report, "#/questions")
    assert page.locator("table.records").inner_text() == plain.locator("table.records").inner_text()


def test_any_address_opens_a_view(visit, report):
    rng = random.Random(20261115)
    addresses = [f"#/{text(word)}" for word in WORDS] + [f"#{word}" for word in WORDS if word != "main"]
    single = [(view, name, word) for view in ("questions", "question", "lens") for name in NAMES for word in WORDS]
    addresses += [f"#/{view}?{name}={text(word)}" for view, name, word in rng.sample(single, 40)]
    for _ in range(40):
        pairs = [(rng.choice(NAMES), rng.choice(WORDS)) for _ in range(rng.randrange(6))]
        query = urlencode(pairs, errors="surrogatepass") if rng.random() < 0.8 else "&".join(map("=".join, pairs))
        addresses.append(f"#/{rng.choice(VIEWS + WORDS)}?{query}")
    page = visit(report)
    silent = [address[:80] for address in addresses if page.evaluate(GO, address) is None]
    assert silent == []
