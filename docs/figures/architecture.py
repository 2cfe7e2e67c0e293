"""The pictures and tables of docs/architecture.md, read from the code: `python docs/figures/architecture.py [--write]`.

Imports come from grimp's graph (the one that import-linter checks), file descriptions from the first sentence of each
module's docstring, the ways to compute φ from the table that chooses between them. The objects and the steps of the
walk are named here; where they are defined and what they are for is looked up. A name that no longer exists is an
error, and so is an edge of the flow of data that no import can carry. `--write` updates the page and its pictures;
`--walk` measures one question with the embedded model and prints how many functions and files it passes through.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import grimp
import torch

from loopscope.readout.affine.choose import IMPLEMENTATIONS, WAYS, Asked, choose

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "loopscope"
PAGE = ROOT / "docs" / "architecture.md"
IMAGES = ROOT / "docs" / "images"

# In the order in which data passes through them.
ORDER = (
    *("cli", "tasks", "models", "measuring", "readout", "kernels", "path"),
    *("store", "stats", "control", "studies", "report", "reproduction", "bench", "monitor", "toys"),
)
OBJECTS = (
    *(
        "models:LoopedModel",
        "tasks:Example",
        "measuring:Question",
        "models:Batch",
        "measuring:Update",
        "measuring:Reading",
    ),
    *("readout:UtilityPath", "readout:Survey", "store:Manifest", ":Run", "studies:TableResult"),
)
# The functions that one question passes through in `measure`, in the order in which they are first called.
WALK = (
    *(":measure", "measuring:run_request", "tasks:load_task", "models:load_model", "measuring:prepare"),
    *("store:open_or_create", "measuring:run_pending", "measuring:Worker.run", "measuring:plan_batches"),
    *("measuring:collate", "measuring:Trip.begin", "readout:affine_path_from_states"),
    *("measuring:update_columns", "measuring:PendingTrip.finish", "store:RunWriter.commit", "store:RunWriter.finish"),
)


class Arrow(NamedTuple):
    """Data that goes from one package to another: an object of the code, or what stands in a file."""

    start: str
    end: str
    label: str


FLOW = (
    Arrow("questions", "tasks", ""),
    Arrow("checkpoint", "models", ""),
    Arrow("tasks", "measuring", "Example"),
    Arrow("models", "measuring", "LoopedModel"),
    Arrow("measuring", "readout", "states H, H⁺"),
    Arrow("readout", "measuring", "UtilityPath"),
    Arrow("measuring", "path", "A, Q, φ"),
    Arrow("path", "measuring", "Outcome"),
    Arrow("measuring", "store", "RunWriter"),
    Arrow("store", "run directory", ""),
    Arrow("store", "studies", "Run"),
    Arrow("stats", "studies", "Estimate"),
    Arrow("studies", "report", "TableResult"),
    Arrow("studies", "tables, figures", ""),
    Arrow("report", "page", ""),
)
# Column and row of each box.
PLACES = {
    **{"questions": (0, 0.55), "checkpoint": (0, 1.45), "tasks": (1, 0.55), "models": (1, 1.45)},
    **{"path": (2, 0), "measuring": (2, 1), "readout": (2, 2), "run directory": (3, 0), "store": (3, 1)},
    **{"stats": (4, 2), "studies": (4, 1), "tables, figures": (4, 0), "report": (5, 1), "page": (5, 0)},
}
FILES = {
    "questions": "JSONL, Parquet, hub",
    "checkpoint": "safetensors",
    "run directory": "JSON, Parquet",
    "tables, figures": "text, LaTeX, PDF…",
    "page": "report.html",
}


class Definition(NamedTuple):
    """A class or function of the package."""

    file: str
    line: str
    """The first sentence of its docstring."""


# ---- what the code says -------------------------------------------------------------------------------------------


@cache
def tree(file: Path) -> ast.Module:
    """A parsed source file."""
    return ast.parse(file.read_text(encoding="utf-8"))


def first_sentence(docstring: str | None) -> str:
    """The first sentence of a docstring, on one line.

    >>> first_sentence("Reads a file (e.g. JSON) and checks it. Then more.")
    'Reads a file (e.g. JSON) and checks it.'
    """
    paragraph = re.sub(r"\s+", " ", (docstring or "").strip().split("\n\n")[0])
    found = re.match(r".*?[^.g][.](?= [A-Z`φ]|$)", paragraph)
    return found[0] if found else paragraph


@cache
def definitions() -> dict[tuple[str, str], list[Definition]]:
    """Classes, methods and functions by package and name; the package of a top-level module is empty."""
    found: dict[tuple[str, str], list[Definition]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        inside = file.relative_to(SOURCE)
        package = inside.parts[0] if len(inside.parts) > 1 else ""
        for node in tree(file).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not _is_signature(node):
                found.setdefault((package, node.name), []).append(_definition(inside, node))
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef):
                        name = (package, f"{node.name}.{inner.name}")
                        found.setdefault(name, []).append(_definition(inside, inner))
    return found


def _is_signature(node: ast.ClassDef | ast.FunctionDef) -> bool:
    """Whether it is one of the types of a function that is defined below."""
    return any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in node.decorator_list)


def _definition(file: Path, node: ast.ClassDef | ast.FunctionDef) -> Definition:
    return Definition(file.as_posix(), first_sentence(ast.get_docstring(node)))


def look_up(name: str) -> Definition:
    """Where `package:name` is defined."""
    package, _, short = name.partition(":")
    found = definitions().get((package, short), [])
    if len(found) != 1:
        raise SystemExit(f"{Path(__file__).name}: {len(found)} definitions of {short} in {package or 'loopscope'}")
    return found[0]


@cache
def imports() -> dict[str, set[str]]:
    """The packages that each package imports, those that every package may import (errors and the like) left out."""
    graph = grimp.build_graph("loopscope", exclude_type_checking_imports=True)
    edges: dict[str, set[str]] = {package: set() for package in ORDER}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            start, end = (name.split(".")[1] if "." in name else "" for name in (module, imported))
            if start in edges and end in edges and start != end:
                edges[start].add(end)
    found = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    if found != set(ORDER):
        raise SystemExit(f"{Path(__file__).name}: ORDER lacks or has too many of {sorted(found ^ set(ORDER))}")
    return edges


def reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """The edges that do not follow from others.

    >>> reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
    True
    """

    def below(name: str) -> set[str]:
        return {name}.union(*(below(end) for end in edges[name]))

    return {
        start: {end for end in ends if not any(end in below(other) for other in ends - {end})}
        for start, ends in edges.items()
    }


def layers(edges: dict[str, set[str]]) -> dict[str, int]:
    """How many packages at most lie above each.

    >>> layers({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    {'a': 0, 'b': 1, 'c': 2}
    """

    def layer(name: str) -> int:
        return max((1 + layer(start) for start, ends in edges.items() if name in ends), default=0)

    return {name: layer(name) for name in edges}


# ---- tables -------------------------------------------------------------------------------------------------------


def grid(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    heads = tuple(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def packages_table() -> str:
    """Every package with its description and what it imports."""
    rows = []
    for package in ORDER:
        line = first_sentence(ast.get_docstring(tree(SOURCE / package / "__init__.py")))
        imported = ", ".join(f"`{name}`" for name in ORDER if name in imports()[package])
        rows.append((f"[`{package}`](#{package})", line, imported))
    return grid(("package", "what it is for", "imports"), rows)


def objects_table() -> str:
    """The objects that people meet."""
    found = [(name.partition(":")[2], look_up(name)) for name in OBJECTS]
    return grid(("object", "file", "what it is"), ((f"`{name}`", f"`{at.file}`", at.line) for name, at in found))


def walk_table() -> str:
    """The steps of the walk."""
    found = [(name.partition(":")[2], look_up(name)) for name in WALK]
    return grid(
        ("", "function", "file", "what it does"),
        ((str(number), f"`{name}`", f"`{at.file}`", at.line) for number, (name, at) in enumerate(found, 1)),
    )


def ways_table() -> str:
    """The ways to compute φ under an affine head."""
    rows = ((f"`{way.name}`", way.purpose, way.cost, str(way.max_order)) for way in WAYS.values())
    return grid(("`impl=`", "for", "cost", "highest derivative"), rows)


def choices_table() -> str:
    """What `choose` answers on a CPU, for every name and kind of question."""
    on = torch.zeros(1, dtype=torch.float64)
    asked = {"even scales or a survey": Asked(even=True), "other scales": Asked(even=False)}
    rows = [
        [f"`{impl}`", *(f"`{choose(impl, one, on, has_fused=False)}`" for one in asked.values())]
        for impl in IMPLEMENTATIONS
        if impl not in ("fused", "fp64_kernel")
    ]
    return grid(("`impl=`", *asked), rows)


def files_of(package: str) -> str:
    """The files of a package with the first sentence of each; of one that is empty, the top-level modules."""
    folder = SOURCE / package
    files = sorted(folder.rglob("*.py") if package else SOURCE.glob("*.py"))
    rows = []
    for file in files:
        line = first_sentence(ast.get_docstring(tree(file)))
        if file.name != "__init__.py" or file.parent != folder or not package:
            rows.append((f"`{file.relative_to(folder).as_posix()}`", line))
    return grid(("file", "what it is for"), [row for row in rows if not row[0].endswith("__init__.py`") or not package])


def tables() -> dict[str, str]:
    """Every table by the name of its markers."""
    sections = [f"### {package}\n\n{files_of(package)}" for package in ORDER]
    return {
        "packages": packages_table(),
        "objects": objects_table(),
        "walk": walk_table(),
        "ways": ways_table(),
        "choices": choices_table(),
        "files": "\n\n".join([*sections, f"### Top-level modules\n\n{files_of('')}"]),
    }


# ---- pictures -----------------------------------------------------------------------------------------------------

STYLE = """
  svg { background: #ffffff; font: 14px system-ui, sans-serif }
  rect { fill: #eef1fb; stroke: #3f51b5; stroke-width: 1.2 }
  rect.file { fill: #ffffff; stroke: #888888; stroke-dasharray: 4 3 }
  text { text-anchor: middle; fill: #1a1a1a }
  text.small { font-size: 11px; fill: #555555 }
  text.label { font-size: 12px; fill: #3f51b5; paint-order: stroke; stroke: #ffffff; stroke-width: 4px }
  path { fill: none; stroke: #555555; stroke-width: 1.2; marker-end: url(#head) }
"""


class Box(NamedTuple):
    """A rectangle by its centre."""

    x: float
    y: float
    width: float
    height: float

    def edge(self, x: float, y: float) -> tuple[float, float]:
        """Where the line from the centre towards a point leaves the box."""
        dx, dy = x - self.x, y - self.y
        share = min(
            self.width / 2 / abs(dx) if dx else float("inf"),
            self.height / 2 / abs(dy) if dy else float("inf"),
        )
        return self.x + dx * share, self.y + dy * share


def picture(
    title: str, size: tuple[int, int], boxes: dict[str, Box], arrows: Iterable[tuple[str, str, str, float]]
) -> str:
    """An SVG of boxes and arrows; the last number of an arrow moves it aside."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}"'
        f' viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{title}">',
        f"<title>{title}</title><style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" style="fill:#555555;stroke:none;marker-end:none"/></marker></defs>',
    ]
    labels = []
    for start, end, label, aside in arrows:
        a, b = boxes[start], boxes[end]
        (x1, y1), (x2, y2) = a.edge(b.x, b.y), b.edge(a.x, a.y)
        if a.x == b.x:
            x1, x2 = x1 + aside, x2 + aside
        parts.append(f'<path d="M{x1:.1f},{y1:.1f} L{x2:.1f},{y2:.1f}"/>')
        if label:
            across = a.x == b.x
            below = 4 if across else 16 if b.y < a.y else -6 if b.y == a.y else -10
            x, y = (x1 + x2) / 2 + (aside * 2.4 if across else 0), (y1 + y2) / 2 + below
            labels.append(f'<text class="label" x="{x:.1f}" y="{y:.1f}">{label}</text>')
    for name, box in boxes.items():
        kind = ' class="file"' if name in FILES else ""
        corner = f'x="{box.x - box.width / 2:.1f}" y="{box.y - box.height / 2:.1f}"'
        parts.append(f'<rect{kind} {corner} width="{box.width:.0f}" height="{box.height:.0f}" rx="6"/>')
        shift = -3 if name in FILES else 5
        parts.append(f'<text x="{box.x:.1f}" y="{box.y + shift:.1f}">{name}</text>')
        if name in FILES:
            parts.append(f'<text class="small" x="{box.x:.1f}" y="{box.y + 13:.1f}">{FILES[name]}</text>')
    return "\n".join([*parts, *labels, "</svg>"]) + "\n"


def flow_picture() -> str:
    """How data goes through the packages."""
    boxes = {name: Box(75 + 205 * column, 40 + 115 * row, 118, 44) for name, (column, row) in PLACES.items()}
    known = {name for _, name in definitions()}
    both = {frozenset(arrow[:2]) for arrow in FLOW if Arrow(arrow.end, arrow.start, "")[:2] in {a[:2] for a in FLOW}}
    arrows = []
    for start, end, label in FLOW:
        if label.isidentifier() and label not in known:
            raise SystemExit(f"{Path(__file__).name}: the flow of data names {label}, which is not in the code")
        if {start, end} <= set(ORDER) and not (end in imports()[start] or start in imports()[end]):
            raise SystemExit(f"{Path(__file__).name}: neither of {start} and {end} imports the other")
        aside = (-16 if start < end else 16) if frozenset((start, end)) in both else 0
        arrows.append((start, end, label, aside))
    return picture("How data goes through loopscope", (1180, 310), boxes, arrows)


def imports_picture() -> str:
    """Which package imports which."""
    edges = imports()
    drawn = reduced(edges)
    layer = layers(edges)
    arrows = [(start, end) for start in ORDER for end in ORDER if end in drawn[start]]
    columns = arrange(layer, arrows)
    boxes = {name: Box(70 + 66 * columns[name], 40 + 92 * layer[name], 104, 36) for name in ORDER}
    size = (140 + 66 * max(columns.values()), 80 + 92 * max(layer.values()))
    return picture("Which package imports which", size, boxes, [(start, end, "", 0.0) for start, end in arrows])


def arrange(layer: dict[str, int], arrows: Sequence[tuple[str, str]]) -> dict[str, int]:
    """A column for each package: no arrow behind a box that is not its own, few crossings, short arrows.

    The best of many arrangements that a fixed seed makes; boxes are two columns wide.
    """

    def middle(start: str, end: str, at: float, column: dict[str, int]) -> float:
        share = (at - layer[start]) / (layer[end] - layer[start])
        return column[start] + share * (column[end] - column[start])

    def cost(column: dict[str, int]) -> float:
        total = sum(0.1 * abs(column[start] - column[end]) for start, end in arrows)
        for start, end in arrows:
            for name in layer:
                if layer[start] < layer[name] < layer[end]:
                    total += 20 * (abs(middle(start, end, layer[name], column) - column[name]) < 1.2)
        for number, (a, b) in enumerate(arrows):
            for c, d in arrows[number + 1 :]:
                top, bottom = max(layer[a], layer[c]), min(layer[b], layer[d])
                if top < bottom and a != c and b != d:
                    above = middle(a, b, top, column) - middle(c, d, top, column)
                    below = middle(a, b, bottom, column) - middle(c, d, bottom, column)
                    total += above * below < 0
        rows: dict[int, list[int]] = {}
        for name in layer:
            rows.setdefault(layer[name], []).append(column[name])
        for row in map(sorted, rows.values()):
            total += sum(20 for left, right in pairwise(row) if right - left < 2)
        return total

    draw = random.Random(0)
    best: dict[str, int] = {}
    for _ in range(8):
        column = {name: draw.randrange(13) for name in layer}
        now = cost(column)
        for _ in range(1500):
            tried = {**column, draw.choice(ORDER): draw.randrange(13)}
            if (then := cost(tried)) <= now:
                column, now = tried, then
        if not best or now < cost(best):
            best = column
    first = min(best.values())
    return {name: at - first for name, at in best.items()}


def pictures() -> dict[str, str]:
    """Every picture by its file name."""
    return {"architecture-flow.svg": flow_picture(), "architecture-imports.svg": imports_picture()}


# ---- the page -----------------------------------------------------------------------------------------------------


def write(page: str, found: dict[str, str]) -> str:
    """The page with every table between its markers."""
    for name, table in found.items():
        pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        page, count = pattern.subn(lambda match, table=table: f"{match[1]}\n{table}\n{match[2]}", page)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"{PAGE.name} has {count} places for {name}")
    return page


# ---- the walk -----------------------------------------------------------------------------------------------------


class Calls(NamedTuple):
    """Functions of loopscope in the order in which they were called."""

    functions: list[tuple[str, str]]
    """File and qualified name."""

    def first(self) -> list[tuple[str, str]]:
        """Each function once, at its first call."""
        return list(dict.fromkeys(self.functions))


def trace_walk(level: str = "quick") -> Calls:
    """Measure one question with the embedded model and note every call."""
    import loopscope

    calls: list[tuple[str, str]] = []
    start = str(SOURCE)

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(start):
            calls.append((frame.f_code.co_filename[len(start) + 1 :], frame.f_code.co_qualname))

    with tempfile.TemporaryDirectory() as folder:
        measure = loopscope.measure
        sys.setprofile(note)
        threading.setprofile(note)
        try:
            measure("toy-ouro", "arithmetic", transitions=4, limit=1, level=level, output=f"{folder}/run")
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return Calls(calls)


def walk_figures(calls: Calls) -> Iterator[str]:
    """Functions, files and changes of package."""
    files = [file for file, name in calls.functions if name != "<module>"]
    packages = [file.split("/")[0] for file in files]
    changes = sum(a != b for a, b in pairwise(packages))
    distinct = {call for call in calls.functions if call[1] != "<module>"}
    yield f"{len(distinct)} functions in {len(set(files))} files, {changes} changes of package"


def main() -> None:
    """Print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="update docs/architecture.md and its pictures")
    parser.add_argument("--walk", action="store_true", help="measure one question and count what it passes through")
    flags = parser.parse_args()
    if flags.walk:
        print("\n".join(walk_figures(trace_walk())))
        return
    if not flags.write:
        for name, table in tables().items():
            print(f"{name}\n\n{table}\n")
        return
    PAGE.write_text(write(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
    for name, drawn in pictures().items():
        (IMAGES / name).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
