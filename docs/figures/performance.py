"""The numbers of docs/performance.md: `python docs/figures/performance.py [--write]`.

Reads what `loopscope bench --output` wrote to bench_h200.json, bench_cpu.json and loops_h200.json and prints the
Markdown of every table, each under the name of its markers; `--write` puts them between those markers. A machine
without a file has no numbers on the page.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from loopscope.bench.loop_speed import BARE, PLAIN
from loopscope.bench.row import beside

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parent / "performance.md"
BENCHMARKS = FOLDER.parents[1] / "benchmarks"
MACHINES = {"h200": "bench_h200.json", "cpu": "bench_cpu.json"}
LOOPS = "loops_h200.json"
NOTHING = "Nothing on record yet."

Row = dict[str, Any]


def reports() -> dict[str, dict[str, Any] | None]:
    """The files by machine; None where there is none."""
    found = {name: BENCHMARKS / file for name, file in MACHINES.items()}
    return {
        name: json.loads(path.read_text(encoding="utf-8")) if path.exists() else None for name, path in found.items()
    }


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, the others to the right."""
    lines = [heads, [":---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def amount(value: float | None, unit: str) -> str:
    """A number with its unit."""
    if value is None:
        return "—"
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if value < 1.0 else f"{value:.3g} s"
    return f"{value:,.0f} MiB" if unit == "MiB" else f"{value:.3g}"


def machine_line(report: dict[str, Any]) -> str:
    """Hardware and versions in a sentence."""
    found = report["machine"]
    device = found["device"] if "cuda" in found else f"{found['cpu']}, {found['cores']} cores"
    cuda = f", CUDA {found['cuda']}" if "cuda" in found else ""
    versions = f"torch {found['torch']}{cuda}, Triton {found['triton']}, Python {found['python']}"
    return f"{device}; {versions}; loopscope {found['loopscope']}, {found['date']}."


def goals_table(rows: Sequence[Row]) -> str:
    """Every goal with what came out."""
    lines = []
    for row in rows:
        for goal in row["goals"]:
            met = {True: "yes", False: "**no**", None: "not judged"}[goal["met"]]
            lines.append((f"`{row['name']}`", goal["text"], beside(goal["measured"], goal["bound"]), met))
    return grid(("row", "goal", "measured", "met"), lines)


def times_table(rows: Sequence[Row]) -> str:
    """Every row of seconds or memory, with all that it is held against."""
    return grid(
        ("row", "measured", "spread", "per 1000 tokens", "held against", "that takes", "per 1000 tokens", "ratio"),
        (line for row in rows if row["unit"] for line in _times(row)),
    )


def _times(row: Row) -> Iterator[tuple[str, ...]]:
    own, unit = row["measured"], row["unit"]
    spread = f"{amount(own['low'], unit)} – {amount(own['high'], unit)}" if own["repeats"] > 1 else "—"
    head = (f"`{row['name']}`", amount(own["value"], unit), spread, amount(own.get("per_1000_tokens"), "s"))
    for reference in row["references"] or [None]:
        if reference is None:
            yield (*head, "—", "—", "—", "—")
            continue
        each = amount(reference.get("per_1000_tokens"), "s")
        less = "the floor" if reference["floor"] else ("faster" if unit == "s" else "less")
        ratio = "—" if reference["ratio"] is None else f"{reference['ratio']:.3g} × {less}"
        yield (*head, reference["name"], amount(reference["value"], unit), each, ratio)
        head = ("", "", "", "")


def errors_table(rows: Sequence[Row]) -> str:
    """RMS and largest errors over those of plain FP32, a column a row of the benchmark."""
    cases = {row["name"]: {error["quantity"]: error for error in row["errors"]} for row in rows if row["errors"]}
    names = dict.fromkeys(name for case in cases.values() for name in case)
    lines = [(name, *(_ratios(case[name]) if name in case else "" for case in cases.values())) for name in names]
    return grid(("quantity", *(f"`{name}`" for name in cases)), lines)


def _ratios(error: dict[str, Any]) -> str:
    rms, low, high, largest = (
        "∞" if error[name] is None else f"{error[name]:.2g}" for name in ("rms_ratio", "low", "high", "max_ratio")
    )
    return f"{rms} [{low}, {high}] · {largest}"


def what_table(rows: Sequence[Row]) -> str:
    """What each row measures and at which size."""
    lines = []
    for row in rows:
        size = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in row["size"].items())
        lines.append((f"`{row['name']}`", row["what"].replace("|", "\\|"), size))
    return grid(("row", "what", "size"), lines)


def loops_table(rows: Sequence[Row]) -> str:
    """The loops that have a bare stack beside them, in milliseconds per 1000 tokens and loop."""
    lines = []
    for row in rows:
        each = {reference["name"]: reference for reference in row["references"]}
        if BARE not in each:
            continue
        scale = 1e6 / (row["size"]["loops"] * row["size"]["tokens"])
        own, bare, plain = (found["value"] * scale for found in (row["measured"], each[BARE], each[PLAIN]))
        goal = row["goals"][0]
        met = "yes" if goal["met"] else "**no**"
        name = row["what"].partition(" in ")[0]
        rows_, tokens = row["size"]["rows"], row["size"]["tokens"]
        name += f", {rows_} × {tokens // rows_}"
        lines.append((name, f"{own:.3g}", f"{bare:.3g}", f"{plain:.3g}", f"{goal['measured']:.2f}", met))
    return grid(("what", "loopscope", "bare stack", "loopscope, no kernels", "speed beside it", "at least 0.9"), lines)


def tables() -> dict[str, str]:
    """Every table of the page by the name of its markers."""
    made = {}
    loops = json.loads((BENCHMARKS / LOOPS).read_text(encoding="utf-8")) if (BENCHMARKS / LOOPS).exists() else None
    made["loops h200"] = NOTHING if loops is None else loops_table(loops["rows"])
    made["loops machine"] = NOTHING if loops is None else machine_line(loops)
    for name, report in reports().items():
        for kind, build in (("what", what_table), ("goals", goals_table), ("times", times_table)):
            made[f"{kind} {name}"] = NOTHING if report is None else build(report["rows"])
        made[f"errors {name}"] = NOTHING if report is None else errors_table(report["rows"])
        made[f"machine {name}"] = NOTHING if report is None else machine_line(report)
    return made


def write(page: str, made: dict[str, str]) -> str:
    """The page with the tables between their markers."""
    for name, text in made.items():
        between = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
        page, count = between.subn(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
        if count != 1:
            raise SystemExit(f"{count} places for the table {name!r} in the page")
    return page


def main() -> None:
    """Print the tables, or put them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    options = parser.parse_args()
    made = tables()
    if options.write:
        PAGE.write_text(write(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
        return
    for name, text in made.items():
        print(f"<!-- table: {name} -->\n{text}\n<!-- end -->\n")


if __name__ == "__main__":
    main()
