"""Provenance: what differs between the runs stands first; hashes are short and copied whole."""

import re

from loopscope.report.provenance import provenance
from loopscope.store import StoredRun


def described(report):
    return [
        {entry["term"]: entry["text"] for entry in provenance(StoredRun(report.parent / run))}
        for run in ("first", "second")
    ]


def test_the_differences_are_exactly_the_entries_that_differ(visit, report):
    page = visit(report, "#/provenance")
    first, second = described(report)
    expected = {term for term in {**first, **second} if first.get(term) != second.get(term)}
    assert set(page.locator(".differences tbody th").all_inner_texts()) == expected
    same = len({**first, **second}) - len(expected)
    assert f"{same} of {same + len(expected)} entries are the same" in page.locator(".differences").inner_text()
    assert page.locator(".differences thead th").all_inner_texts() == ["first", "second"]


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


def test_one_run_has_nothing_to_differ_from(visit, page_of, synthetic):
    page = visit(page_of(synthetic.Made([synthetic.Question("q", ["a"])] * 2, tokens=False)), "#/provenance")
    assert page.locator(".differences").count() == 0
