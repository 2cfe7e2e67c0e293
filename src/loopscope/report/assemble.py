"""The page from its parts: style sheets and script modules as one each, a policy that allows only these, inert data.

The page's scripts are ES modules in `page/`; `main.js` is the entry. A file opened from disk may not load modules, so
they are bundled here: each becomes a function that returns its exports, in the order of their imports. Of the module
syntax the bundle knows `import { a, b } from "./other.js";` and `export` before a constant, a function or a class.
"""

import base64
import hashlib
import html
import re
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files

STYLES = (
    "tokens.css",
    "base.css",
    "overview.css",
    "questions.css",
    "question.css",
    "lens.css",
    "studies.css",
    "training.css",
    "provenance.css",
    "print.css",
)
"""In the order of the cascade: the last one outweighs the others on paper."""
ENTRY = "main"

_IMPORT = re.compile(r'^import \{ ([\w$, ]+) \} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|class|(?:async )?function) ([\w$]+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*|\bimport\s*[(.].*", re.MULTILINE)


def style() -> str:
    """All style sheets as one."""
    return "\n".join(part(name) for name in STYLES)


def script() -> str:
    """All modules as one script."""
    return bundle(ENTRY, lambda name: part(f"{name}.js"))


def bundle(entry: str, read: Callable[[str], str]) -> str:
    """One script that runs a module after everything it imports, each in a scope of its own.

    Args:
        entry: the module to run last.
        read: the source of a module by its name.

    Raises:
        ValueError: for modules that import each other, names that are not exported, other module syntax.
    """
    exported: dict[str, list[str]] = {}
    pieces: list[str] = []

    def add(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise ValueError(f"modules import each other: {' → '.join((*importers, name))}")
        if name in exported:
            return
        source = read(name)
        imports = [(found[2], found[1].split(", ")) for found in _IMPORT.finditer(source)]
        for other, wanted in imports:
            add(other, (*importers, name))
            if absent := [each for each in wanted if each not in exported[other]]:
                raise ValueError(f"{name}.js imports {', '.join(absent)}, which {other}.js does not export")
        exports = _EXPORT.findall(source)
        body = _EXPORT.sub("", _IMPORT.sub("", source))
        if unknown := _OTHER.search(body):
            raise ValueError(f"{name}.js: the bundle does not know {unknown[0]!r}")
        exported[name] = exports
        taken = "".join(f"const {{ {', '.join(wanted)} }} = ${other};\n" for other, wanted in imports)
        pieces.append(f"const ${name} = (() => {{\n{taken}{body}return {{ {', '.join(exports)} }};\n}})();\n")

    add(entry, ())
    return '(() => {\n"use strict";\n' + "".join(pieces) + "})();\n"


def part(name: str) -> str:
    """One of the page's source files."""
    return files("loopscope.report").joinpath("page", name).read_text(encoding="utf-8")


def policy(styles: str, scripts: str) -> str:
    """Nothing may load, run or be sent but this one style sheet, this one script and images in the page itself."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(scripts)}",
            f"style-src {_hash(styles)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def document(title: str, early: Iterable[tuple[str, str]], late: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The file in pieces.

    Args:
        title: of the window.
        early: packs by name that the first view needs; they stand before the script.
        late: packs that are decoded when they are looked at; they stand after it, so that the first view does not wait
            until the browser has read them.
    """
    styles, scripts = style(), script()
    for text in (styles, scripts):
        if "</" in text:
            raise ValueError("a page source holds '</', which could end its element")
    filled = {"policy": html.escape(policy(styles, scripts)), "title": html.escape(title), "style": styles}
    head, _, tail = part("page.html").partition("<!--data-->")
    for name, value in filled.items():
        head = head.replace(f"<!--{name}-->", value)
    yield head
    yield from (_inert(name, text) for name, text in early)
    yield f"<script>{scripts}</script>\n"
    yield from (_inert(name, text) for name, text in late)
    yield tail


def _inert(name: str, packed: str) -> str:
    """A data block: browsers neither run nor interpret a script element of an unknown type."""
    return f'<script type="application/x-loopscope" id="{html.escape(name)}">{packed}</script>\n'
