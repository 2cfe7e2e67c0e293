"""Pages of made-up runs, and a real Chromium to open them in (Debian's, driven by Playwright)."""

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from loopscope.report import write_report
from loopscope.stats import Bootstrap

FEW = Bootstrap(resamples=60)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"report_tests_{name}", Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SYNTHETIC = _load("synthetic")


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The module that writes made-up runs."""
    return SYNTHETIC


@pytest.fixture(scope="session")
def unpack() -> Callable[[str], tuple[dict[str, Any], dict[str, Any]]]:
    """Reads a pack: arrays (flat) and values."""
    read: Callable[[str], tuple[dict[str, Any], dict[str, Any]]] = SYNTHETIC.unpack
    return read


@pytest.fixture(scope="session")
def riddles() -> Any:
    """Thirty solutions at level full, with tokens, FP64 paths and a lens."""
    questions = [
        SYNTHETIC.Question(
            f"Riddle {row}: what is {row} and {row + 1}?", [f"It is {2 * row + 1} apples.\nAnswer {row}"]
        )
        for row in range(30)
    ]
    return SYNTHETIC.Made(questions, level="full", paths=True, lens=5)


@pytest.fixture(scope="session")
def choices() -> Any:
    """Forty choices between four options at level grid, of a model with random weights."""
    questions = [
        SYNTHETIC.Question(
            f"Choice {row}. She takes the", [f" red {row}", " blue one", " green 😀 one", " long way"], row % 4
        )
        for row in range(40)
    ]
    return SYNTHETIC.Made(
        questions,
        transitions=(2, 4),
        name="choices",
        seed=4,
        model={"name": "drawn", "random_weights": True, "weights": {}},
    )


@pytest.fixture(scope="session")
def runs(made_once: Callable[..., Path], riddles: Any, choices: Any) -> Path:
    """The folder of both runs."""

    def fill(folder: Path) -> None:
        SYNTHETIC.write_run(folder / "first", riddles)
        SYNTHETIC.write_run(folder / "second", choices)

    return made_once("report-runs", fill)


@pytest.fixture(scope="session")
def report(made_once: Callable[..., Path], runs: Path) -> Path:
    """One page of both runs, figures included."""

    def fill(folder: Path) -> None:
        for name in ("first", "second"):
            shutil.copytree(runs / name, folder / name)
        write_report([folder / "first", folder / "second"], folder / "report.html", FEW)

    return made_once("report", fill) / "report.html"


@pytest.fixture(scope="session")
def without_figures() -> Callable[..., Path]:
    """`write_report` without drawing the studies' figures, which take most of its time."""

    def write(*given: Any, **settings: Any) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("loopscope.report.study_pages.FIGURES", {})
            return write_report(*given, **settings)

    return write


@pytest.fixture(scope="session")
def page_of(tmp_path_factory: pytest.TempPathFactory, without_figures: Callable[..., Path]) -> Callable[..., Path]:
    """From a made-up task to a page of its own."""

    def make(made: Any) -> Path:
        folder = tmp_path_factory.mktemp("page")
        SYNTHETIC.write_run(folder / "run", made)
        return without_figures([folder / "run"], folder / "report.html", FEW)

    return make


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless browser; tests that need it are skipped, with the reason, where it cannot be had."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="browser tests need Playwright: pip install playwright"
    )
    program = os.environ.get("LOOPSCOPE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("browser tests need Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def expect(chromium: Any) -> Any:
    """Playwright's assertions, which wait until they hold."""
    from playwright.sync_api import expect

    expect.set_options(timeout=20_000)
    return expect


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Waits until an expression is true; the page's own policy forbids Playwright's polling inside the page."""

    def wait(page: Any, expression: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not page.evaluate(expression):
            assert time.monotonic() < end, f"not within {seconds} s: {expression}"
            page.wait_for_timeout(50)

    return wait


OPEN = """async (hash) => {
  const main = document.getElementById("main");
  main.replaceChildren();
  delete main.dataset.view;
  scrollTo(0, 0);
  if (location.hash === hash) dispatchEvent(new HashChangeEvent("hashchange"));
  else location.hash = hash;
  while (!main.dataset.view) await new Promise((done) => setTimeout(done, 5));
}"""
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Plots are drawn by a ResizeObserver, which reports in the frame after the one that laid them out."""


@pytest.fixture(scope="session")
def pages(chromium: Any) -> dict[Any, Any]:
    """One open page for every file and kind of window, which tests share."""
    return {}


@pytest.fixture
def visit(chromium: Any, pages: dict[Any, Any]) -> Iterator[Callable[..., Any]]:
    """Open a page from disk at an address; at the end no error was logged and no request left the file.

    The first page of a test is shared with other tests; a second one of the same kind is its own.
    """
    used: list[Any] = []
    contexts: list[Any] = []
    errors: list[str] = []
    requests: list[str] = []

    def fresh(path: Path, address: str, settings: dict[str, Any]) -> Any:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}} | settings)
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.log = []
        page.on("console", lambda message: page.log.append((message.type in ("error", "warning"), message.text)))
        page.on("pageerror", lambda error: page.log.append((True, str(error))))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri() + address)
        page.wait_for_selector("html[data-ready]")
        return page

    def go(path: Path, address: str = "", **settings: Any) -> Any:
        key = (path, repr(sorted(settings.items())))
        page = pages.get(key)
        if page is None or page in used:
            page = fresh(path, address, settings)
            if key in pages or "has_touch" in settings:
                contexts.append(page.context)
            else:
                pages[key] = page
        else:
            page.emulate_media(media="screen")
            page.mouse.move(0, 0)
            page.evaluate(OPEN, address or "#/overview")
        used.append(page)
        page.evaluate(DRAWN)
        return page

    go.errors = errors  # type: ignore[attr-defined]
    yield go
    for page in dict.fromkeys(used):
        errors += [text for wrong, text in page.log if wrong]
        page.log.clear()
    for context in contexts:
        context.close()
    assert errors == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
