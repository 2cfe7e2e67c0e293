"""The picture in docs/reading-a-run.md, and all views to look at: `python -m docs.figures.report_pictures OUT`.

Measures the embedded models into the folder OUT (what is there already is kept), writes the page, and photographs every
view with Chromium (`apt-get install chromium`, `pip install playwright pillow`) at 1440 and 390 pixels, light and dark,
and every figure. The overview goes into docs/images.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from loopscope.report import write_report

PICTURE = Path(__file__).resolve().parent.parent / "images" / "report-overview.webp"
COMMON = "--transitions 3-6 --depths 1-8 --tokens --device cpu"
RUNS = {
    "stories": "--model toy-ouro --tasks stories --limit 64 --level full --paths --lens 5",
    "options": "--model toy-ouro --tasks arithmetic-mc --limit 64",
}
"""What `loopscope measure` is asked for, by folder."""
VIEWS = ("overview", "questions", "lens", "studies", "studies?study=table-mechanism", "provenance")
QUALITY = 88
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def photographs(browser: Any, page: Path, out: Path) -> None:
    """Every view of a page as PNG."""
    for width in (1440, 390):
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            view = context.new_page()
            view.goto(page.as_uri())
            view.wait_for_selector("html[data-ready]")
            question = view.locator(".opening-figure a").get_attribute("href").removeprefix("#/")
            for number, address in enumerate((*VIEWS, question)):
                view.goto("about:blank")
                view.goto(f"{page.as_uri()}#/{address}")
                view.wait_for_selector("html[data-ready]")
                view.wait_for_timeout(300)
                name = f"{number}-{address.partition('?')[0]}-{width}-{scheme}"
                view.screenshot(path=out / f"{name}.png", full_page=number > 0)
            context.close()


def main(out: Path) -> None:
    """Measure, write, photograph."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    for name, flags in RUNS.items():
        command = ["loopscope", "measure", *flags.split(), *COMMON.split(), "--output", str(out / name)]
        subprocess.run(command, check=True)
    runs = [str(out / name) for name in RUNS]
    page = write_report(runs, out / "report.html")
    subprocess.run(["loopscope", "figures", *runs, "--output", str(out / "figures"), "--format", "png"], check=True)
    program = os.environ.get("LOOPSCOPE_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        photographs(browser, page, out)
        browser.close()
    Image.open(out / "0-overview-1440-light.png").save(PICTURE, quality=QUALITY, method=6)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
