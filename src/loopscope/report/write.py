"""`write_report`: runs in, one HTML file out.

The page's scripts are ES modules in `page/`; `main.js` is the entry. A file opened from disk may not load modules, so
they are bundled here: each becomes a function that returns its exports, in the order of their imports. Of the module
syntax the bundle knows `import { a, b } from "./other.js";` and `export` before a constant, a function or a class.
Style sheets are one element, data is inert, and a policy allows only these.
"""

import base64
import hashlib
import html
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from loopscope import __version__
from loopscope.errors import LoopscopeError, command_line_words, text, whole
from loopscope.path import GRID, PATH_NODES
from loopscope.report.details import LENS_QUESTIONS, detail_chunks, lens_of, path_bits
from loopscope.report.evaluation_set import CHUNK, EvaluationSet, index, pack, sets_of, text_chunks
from loopscope.report.overview import FACTS, NEEDED_TABLES, STEPS, Candidate, opening, overview
from loopscope.report.provenance import provenance, warnings_of
from loopscope.report.study_pages import compute_tables, study_pages
from loopscope.stats import Bootstrap
from loopscope.store.writer import clear_write_errors, require_plain, write_atomically
from loopscope.studies import open_records
from loopscope.studies.conditions import run_labels
from loopscope.studies.records import Records

MOST_QUESTIONS = 1_000_000_000
PATH_NUMBERS = 2_000_000
"""FP64 paths go along up to this many numbers in all: about 10 MB of page."""


def write_report(
    runs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    bootstrap: Bootstrap | None = None,
    *,
    lens_questions: int = LENS_QUESTIONS,
    with_command: bool = False,
) -> Path:
    """Write one self-contained page about some runs.

    Args:
        runs: run directories; several are shown side by side.
        output: the HTML file; it is replaced where it exists.
        bootstrap: resamples, seed and level; the paper's by default.
        lens_questions: of how many questions of each task the page holds the tokens that are likeliest after each loop.
        with_command: show the command line, the paths and the arguments of the model, which are left out by default.

    Returns:
        The file.
    """
    target = Path(text("output", output))
    if target.is_dir():
        raise LoopscopeError(f"{target} is a folder: name a file, such as {target / 'report.html'}")
    require_plain(target)
    records = open_records(runs)
    if not records.runs:
        raise LoopscopeError("a monitor's log holds no question to show: name run directories, too")
    most = whole("lens_questions", lens_questions, 0, MOST_QUESTIONS)
    with clear_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    # The page speaks of commands, whoever writes it.
    with command_line_words():
        content = page(records, bootstrap or Bootstrap(), most, with_command=with_command)
    write_atomically(target, content.encode())
    return target


def page(records: Records, bootstrap: Bootstrap, lens_questions: int, *, with_command: bool) -> str:
    """The file's text; arguments as in `write_report`."""
    by_run = [sets_of(run) for run in records.runs]
    flat = [data for sets in by_run for data in sets]
    bits = path_bits(sum(data.token_rows for data in flat))
    stored = sum(len(data) * len(data.updates) * PATH_NODES for data in flat if data.run.manifest.paths)
    tables = compute_tables(records, bootstrap)
    early, late, runs, candidates = list[tuple[str, str]](), [], [], []
    alike = Counter((data.run.manifest.model.name, data.condition.set_title) for data in flat)
    for number, (run, label) in enumerate(zip(records.runs, run_labels(records.runs), strict=True)):
        # Two runs may be alike in everything a condition names, so each is looked up alone.
        alone = records if len(records.runs) == 1 else Records([run])
        of_run = tables if alone is records else compute_tables(alone, bootstrap, NEEDED_TABLES)
        described, model = [], run.manifest.model
        for place, data in enumerate(by_run[number]):
            name = f"s{number}-{place}"
            summary = overview(data, alone, of_run, bootstrap)
            packs, about = _set(name, data, bits, stored <= PATH_NUMBERS, lens_questions)
            early.append((name, index(data)))
            late += packs
            who = f"{model.name} ({label})" if alike[model.name, data.condition.set_title] > 1 else model.name
            described.append(about | {"name": name, "model": who, "overview": summary})
            candidates.append(Candidate(name, data, who, summary["leading"], summary["declines"]))
        facts = {"model": model.name, "random": model.random_weights, "toy": model.toy, "label": label}
        entries = provenance(run, with_command)
        runs.append(facts | {"trained_depth": model.trained_depth, "provenance": entries, "sets": described})
    meta = {
        "version": __version__,
        "grid": list(GRID),
        "chunk": CHUNK,
        "bits": bits,
        "level": bootstrap.level,
        "resamples": bootstrap.resamples,
        "warnings": warnings_of(records.runs),
        "opening": opening(candidates),
        "explained": {"steps": STEPS, "facts": FACTS},
        "runs": runs,
    }
    studies = pack({}, study_pages(records, bootstrap, tables))
    title = ", ".join(dict.fromkeys(run.manifest.model.name for run in records.runs))
    return document(f"{title} · loopscope", [("meta", pack({}, meta)), *early], [("studies", studies), *late])


def _set(
    name: str, data: EvaluationSet, bits: int, paths: bool, lens_questions: int
) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """The packs of one evaluation set that are decoded late, and what the page knows of it at once."""
    packs = [(f"{name}-t{at}", packed) for at, packed in enumerate(text_chunks(data))]
    details = detail_chunks(data, bits, paths=paths and data.run.manifest.paths)
    packs += [(f"{name}-d{at}", packed) for at, packed in enumerate(details)]
    lens = lens_of(data, lens_questions)
    if lens is not None:
        packs.append((f"{name}-lens", lens.vocabulary))
        packs += [(f"{name}-l{at}", packed) for at, packed in enumerate(lens.chunks)]
    condition = data.condition
    return packs, {
        "task": f"{condition.task}/{condition.split}",
        "title": condition.set_title,
        "kind": condition.kind,
        "questions": len(data),
        "expected": condition.expected,
        "transitions": list(data.transitions),
        "depths": list(data.depths),
        "lens": None if lens is None else lens.described,
    }


STYLES = ["tokens", "base", "overview", "questions", "question", "lens", "studies", "provenance", "print"]
"""In the order of the cascade: the last one outweighs the others on paper."""
ENTRY = "main"

_IMPORT = re.compile(r'^import \{ ([\w$, ]+) \} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|class|(?:async )?function) ([\w$]+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*|\bimport\s*[(.].*", re.MULTILINE)


def script() -> str:
    """All modules as one script that runs each after everything it imports, in a scope of its own."""
    pieces: dict[str, str] = {}

    def add(name: str) -> None:
        source = part(f"{name}.js")
        imports = _IMPORT.findall(source)
        for _, other in imports:
            if other not in pieces:
                add(other)
        body = _EXPORT.sub("", _IMPORT.sub("", source))
        if unknown := _OTHER.search(body):
            raise ValueError(f"{name}.js: the bundle does not know {unknown[0]!r}")
        taken = "".join(f"const {{ {wanted} }} = ${other};\n" for wanted, other in imports)
        exports = ", ".join(_EXPORT.findall(source))
        pieces[name] = f"const ${name} = (() => {{\n{taken}{body}return {{ {exports} }};\n}})();\n"

    add(ENTRY)
    return '(() => {\n"use strict";\n' + "".join(pieces.values()) + "})();\n"


def part(name: str) -> str:
    """One of the page's source files."""
    return files("loopscope.report").joinpath("page", name).read_text(encoding="utf-8")


def document(title: str, early: Iterable[tuple[str, str]], late: Iterable[tuple[str, str]]) -> str:
    """The file. Its policy lets nothing load, run or be sent but its style sheet, its script and images inside it.

    Args:
        title: of the window.
        early: packs by name that the first view needs; they stand before the script.
        late: packs that are decoded when they are looked at; they stand after it, so that the first view does not wait
            until the browser has read them.
    """
    styles, code = "\n".join(part(f"{name}.css") for name in STYLES), script()
    if "</" in styles + code:
        raise ValueError("a page source holds '</', which could end its element")
    policy = (
        f"default-src 'none'; script-src {_hash(code)}; style-src {_hash(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head, _, tail = part("page.html").partition("<!--data-->")
    for name, value in {"policy": html.escape(policy), "title": html.escape(title), "style": styles}.items():
        head = head.replace(f"<!--{name}-->", value)
    return "".join([head, *map(_inert, early), f"<script>{code}</script>\n", *map(_inert, late), tail])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _inert(named: tuple[str, str]) -> str:
    """A data block: browsers neither run nor interpret a script element of an unknown type."""
    name, packed = named
    return f'<script type="application/x-loopscope" id="{html.escape(name)}">{packed}</script>\n'
