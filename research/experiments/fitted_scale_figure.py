"""The figure and the table of research/fitted-scale.md, from results of fitted_scale.py.

    python -m research.experiments.fitted_scale_figure [FILE...] --write

Files given are put together into fitted_scale.json beside this file; without any, that one is drawn.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure

from loopscope.stats.bootstrap import Estimate, Interval
from loopscope.studies.figures import settings
from loopscope.studies.topics.control import scale_panels

STORED = Path(__file__).with_name("fitted_scale.json")
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "fitted-scale.png"
NAMES = {
    "toy-ouro": "toy-ouro", "seed1": "toy-ouro, seed 1", "seed2": "toy-ouro, seed 2", "random-loops": "random loops",
    "toy-ouro:inside=3": "toy-ouro, inside=3", "toy-huginn": "toy-huginn",
}  # fmt: skip
"""Titles, in the order of the figure."""
WIDEST = 6
"""Columns of the figure; of more results those of stories are drawn."""
ESTIMATES = ("fitted", "gain", "over_line", "over_temperature", "next_loop")


def rows_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows with estimates in place of lists."""
    found = []
    for row in result["rows"]:
        given = {name: row[name] for name in ESTIMATES if row[name] is not None}
        estimates: dict[str, Any] = dict.fromkeys(ESTIMATES)
        for name, (value, low, high) in given.items():
            estimates[name] = Estimate(value, result["test"], Interval(low, high))
        found.append(row | estimates)
    return found


def title(result: dict[str, Any]) -> str:
    """The model."""
    return NAMES.get(result["model"], result["model"])


def draw(results: list[dict[str, Any]], picture: Path) -> None:
    """One column for each model and task."""
    groups = {f"{title(result)}\n{result['task']}": (rows_of(result), result["trained_depth"]) for result in results}
    with matplotlib.rc_context(settings()):
        figure = Figure(figsize=(1.25 * len(groups) + 1, 3.4), layout="constrained")
        scale_panels(figure, groups)
        picture.parent.mkdir(exist_ok=True)
        figure.savefig(picture, dpi=200, metadata={"Software": "loopscope"})


def table(results: list[dict[str, Any]]) -> str:
    """One line for each update of one loop; differences in 0.001 nats."""
    heads = ("model", "task", "update", "fitted scale", "gain", "over temperature", "over equal cost", "one more loop")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]

    def cell(given: list[float] | None) -> str:
        return "" if given is None else "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(1e3 * number for number in given))

    for result in results:
        rows = [row for row in result["rows"] if row["kind"] in ("path", "chord")]
        kind = "path" if any(row["kind"] == "path" for row in rows) else "chord"
        for row in rows:
            if row["kind"] == kind and row["depth"] - row["reference"] == 1 and row["reference"] > 0:
                value, low, high = row["fitted"]
                bold = "**" if row["depth"] == result["trained_depth"] else ""
                lines.append(
                    f"| {title(result)} | {result['task']} | {bold}{row['reference']}>{row['depth']}{bold} | "
                    f"{value:.2f} [{low:.2f}, {high:.2f}] | {cell(row['gain'])} | {cell(row['over_temperature'])} | "
                    f"{cell(row['over_line'])} | {cell(row['next_loop'])} |"
                )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Parse the flags, print the table, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="store the results and draw the picture")
    options = parser.parse_args(arguments)
    files = options.files or [STORED]
    results = [result for path in files for result in json.loads(path.read_text())]
    results.sort(key=lambda result: [*NAMES].index(result["model"]))
    if options.write:
        if options.files:
            STORED.write_text(json.dumps(results) + "\n")
        draw(results if len(results) <= WIDEST else [one for one in results if one["task"] == "stories"], PICTURE)
    print(table(results))


if __name__ == "__main__":
    main()
