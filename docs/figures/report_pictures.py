"""The pictures of docs/report.md: `python -m docs.figures.report_pictures RUNS [NAME…]`.

Measures the embedded models into the folder RUNS (what is there already is kept), writes the pages beside the runs and
photographs their views with Chromium (`apt-get install chromium`, `pip install playwright pillow`) into docs/images.
NAME limits it to some pictures. A picture of the window has the window's size; a whole one goes down to the foot.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopscope.report import write_report

IMAGES = Path(__file__).resolve().parent.parent / "images"
RUNS = {
    "stories": "--model toy-ouro --tasks stories --limit 64 --transitions 3-6 --depths 1-8 --tokens",
    "words": "--model toy-ouro --tasks arithmetic --limit 64 --transitions 3-6 --depths 1-8 --tokens",
    "options": "--model toy-ouro --tasks arithmetic-mc --limit 64 --transitions 3-6 --depths 1-8 --tokens",
    "float32": "--model toy-ouro --tasks stories --limit 64 --transitions 3-6 --depths 1-8 --tokens --dtype float32",
    "lens": "--model toy-ouro --tasks stories --limit 24 --transitions 3-6 --depths 1-8 --tokens --lens 5",
}
"""What `loopscope measure` is asked for, by folder."""
STEPS = (40, 80, 160, 240, 320, 480, 640)
"""The checkpoints of the small training that are measured."""
TRAINING = "--tasks stories,arithmetic-mc --limit 24 --transitions 2-5 --depths 1-8"
PAGES = {
    "training": ("training",),
    "report": ("stories", "words", "options"),
    "two": ("stories", "float32"),
    "lens": ("lens",),
}
QUALITY = 88


@dataclass(frozen=True)
class Picture:
    """One view of one page."""

    page: str
    address: str
    width: int = 1440
    height: int = 900
    dark: bool = False
    whole: bool = False


PICTURES = {
    "report-overview": Picture("report", "#/overview"),
    "report-two": Picture("two", "#/overview", height=1500, dark=True),
    "report-training": Picture("training", "#/training", width=1280, height=1080),
    "report-training-narrow": Picture("training", "#/training", width=390, height=844, dark=True),
    "report-questions": Picture("report", "#/questions?run=stories"),
    "report-question": Picture("report", "opening", height=1060),
    "report-options": Picture(
        "report", "#/question?run=options&task=arithmetic-mc/test&id=test-3&t=4&alpha=0.5", height=1000, dark=True
    ),
    "report-narrow": Picture("report", "opening", width=390, height=844),
    "report-provenance": Picture("report", "#/provenance", height=760),
    "report-lens": Picture("lens", "#/lens", height=1000),
    "report-lens-narrow": Picture("lens", "#/lens", width=390, height=844, dark=True),
    "report-studies": Picture("report", "#/studies?study=table-mechanism"),
}
"""The address `opening` is that of the question which the overview opens with."""


def measured(folder: Path, names: set[str]) -> None:
    """Measure what is not there yet."""
    for name, flags in RUNS.items():
        if name in names and not (folder / name / "manifest.json").exists():
            command = ["loopscope", "measure", *flags.split(), "--device", "cpu", "--output", str(folder / name)]
            subprocess.run(command, check=True)


def trained(folder: Path) -> None:
    """A small Ouro with the loss at its third loop, trained for 640 steps on a CPU, and its checkpoints measured."""
    import dataclasses

    from research.toys.recipe import RECIPES, Recipe, ouro_config
    from research.toys.train import train

    small = folder / "small"
    if not (small / "checkpoints" / f"step-{STEPS[-1]}").exists():
        mixture = dataclasses.replace(RECIPES["toy-ouro"].mixture, batch_tokens=2048)
        sizes = ouro_config(64, 128, 2, 2, 3)
        recipe = Recipe("small-ouro", "ouro", sizes, 1, mixture, depth_weights=(0.0, 0.0, 1.0), warmup_steps=10)
        train(recipe, small, steps=STEPS[-1], device="cpu", save_every=STEPS[0])
    models = ",".join(str(small / "checkpoints" / f"step-{step}") for step in STEPS)
    command = ["loopscope", "measure", "--model", models, *TRAINING.split(), "--device", "cpu"]
    subprocess.run([*command, "--output", str(folder / "training")], check=True)


def photograph(browser: Any, page: Path, picture: Picture) -> bytes:
    """A view as PNG."""
    context = browser.new_context(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme="dark" if picture.dark else "light",
        device_scale_factor=1,
    )
    view = context.new_page()
    address = picture.address
    if address == "opening":
        view.goto(page.as_uri())
        view.wait_for_selector("html[data-ready]")
        address = view.locator(".opening-figure a").get_attribute("href")
    view.goto("about:blank")
    view.goto(page.as_uri() + address)
    view.wait_for_selector("html[data-ready]")
    view.wait_for_timeout(300)
    if picture.width < 500 and picture.address == "opening":
        view.locator(".words-panel").evaluate("(panel) => scrollTo(0, panel.offsetTop - 300)")
        view.wait_for_timeout(200)
    if picture.width < 500 and picture.page == "lens":
        view.locator(".lens-glance").evaluate("(strip) => scrollTo(0, strip.offsetTop - 200)")
        view.wait_for_timeout(200)
    found: bytes = view.screenshot(full_page=picture.whole)
    context.close()
    return found


def main(folder: Path, names: list[str]) -> None:
    """Measure, write, photograph."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    chosen = {name: PICTURES[name] for name in names or PICTURES}
    runs = {run for picture in chosen.values() for run in PAGES[picture.page]}
    measured(folder, runs)
    if "training" in runs and not (folder / "training").exists():
        trained(folder)
    pages = {
        name: write_report([folder / run for run in PAGES[name]], folder / f"{name}.html")
        for name in {picture.page for picture in chosen.values()}
    }
    program = os.environ.get("LOOPSCOPE_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for name, picture in chosen.items():
            image = Image.open(io.BytesIO(photograph(browser, pages[picture.page], picture)))
            image.save(IMAGES / f"{name}.webp", quality=QUALITY, method=6)
            print(IMAGES / f"{name}.webp", *image.size)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
