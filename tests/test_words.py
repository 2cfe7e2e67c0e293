"""Words of no meaning outside this project do not appear in what users read: messages, docstrings, page, documents."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = (
    *("foretell", "foretells", "foretold", "won back", "win back", "wins back", "ways taken", "ways_taken"),
    *("given values", "given rows", "too long a step", "by and by", "shall", "at one with", "dealt", "beside"),
    *("told", "tells", "trip", "trips", "landing", "midway", "borrowed", "may see", "of ones own", "in vain"),
)
FOUND = re.compile(rf"\b({'|'.join(map(re.escape, WORDS))})\b", re.IGNORECASE)


def texts() -> Iterator[tuple[str, str]]:
    """Every string of the package (docstrings are strings), the page's sources, and the documents."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value
    page = (ROOT / "src/loopscope/report/page").iterdir()
    for path in sorted([*page, *ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/api/*.md")]):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def test_words_of_a_private_dialect_do_not_appear() -> None:
    assert [(place, found[0]) for place, text in texts() for found in FOUND.finditer(text)] == []
