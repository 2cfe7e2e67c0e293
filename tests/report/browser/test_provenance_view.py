"""Provenance: what runs share is listed once; hashes are short and copied whole."""

import re

from loopscope.report.provenance import provenance
from loopscope.store import StoredRun


def described(report):
    return [
        {entry["term"]: entry["text"] for entry in provenance(StoredRun(report.parent / run))}
        for run in ("first", "second")
    ]


def test_what_all_runs_share_is_listed_once(visit, report):
    cards = visit(report, "#/provenance").locator("main section.card")
    first, second = described(report)
    same = [term for term in first if first[term] == second.get(term)]
    assert cards.locator("h2").all_inner_texts() == ["first", "second", "The same in all runs"]
    terms = [cards.nth(at).locator("dt").all_inner_texts() for at in range(3)]
    assert terms == [[t for t in first if t not in same], [t for t in second if t not in same], same]


def test_hashes_are_short_and_copied_whole(visit, report, synthetic, wait_until):
    page = visit(report, "#/provenance")
    assert not re.search(r"[0-9a-f]{20}", page.locator("main").inner_text())
    whole = synthetic.digest("weights")
    button = page.get_by_role("button", name=f"Copy {whole}").first
    assert button.inner_text() == f"{whole[:12]}…"
    # What a page from disk may always do: copy what is selected.
    page.evaluate("document.addEventListener('copy', () => (window.copied = document.activeElement.value))")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    button.click()
    wait_until(page, "window.copied !== undefined")
    assert page.evaluate("window.copied") == whole


def test_one_run_has_one_card(visit, page_of, synthetic):
    page = visit(page_of(synthetic.Made([synthetic.Question("q", ["a"])] * 2, tokens=False)), "#/provenance")
    assert page.locator("main section.card").count() == 1
