"""The page from its parts: style sheets and script modules as one each, a policy that allows only these, inert data.

The page's scripts are ES modules in `page/`; `main.js` is the entry. A file opened from disk may not load modules, so
they are bundled here: each becomes a function that returns its exports, in the order of their imports. Of the module
syntax the bundle knows `import { a, b } from "./other.js";` and `export` before a constant, a function or a class.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable
from importlib.resources import files

STYLES = (
    "tokens.css",
    "base.css",
    "overview.css",
    "questions.css",
    "question.css",
    "lens.css",
    "studies.css",
    "provenance.css",
    "print.css",
)
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
    styles, code = "\n".join(map(part, STYLES)), script()
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
