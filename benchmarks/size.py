"""`make size`: how large loopscope is, beside its budgets: code, docstrings, files, settings, columns, words."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import loopscope as ls
from loopscope.store.schema import TABLES

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "loopscope"
BUDGETS = {
    "code lines": 25_000,
    "files": 150,
    "measure parameters": 30,
    "stored columns": 170,
    "document words": 20_000,
    "README words": 600,
}
_SILENT = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)  # fmt: skip


def lines_of(source: str) -> tuple[int, int]:
    """Lines with code, and lines of docstrings."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documented), len(documented)


def words_of(text: str) -> int:
    """Words of a Markdown document, code blocks included."""
    return len(re.findall(r"\S+", text))


def main() -> None:
    """Print the table."""
    code, files, documented = Counter[str](), Counter[str](), 0
    for path in SOURCE.rglob("*.py"):
        inside = path.relative_to(SOURCE).parts
        package = inside[0] if len(inside) > 1 else "top level"
        lines, docstrings = lines_of(path.read_text(encoding="utf-8"))
        code[package] += lines
        files[package] += 1
        documented += docstrings
    for package, lines in code.most_common():
        print(f"  {package:<16} {lines:>7,} code lines in {files[package]:>3} files")
    pages = {path: words_of(path.read_text(encoding="utf-8")) for path in ROOT.glob("docs/**/*.md")}
    found = {
        "code lines": code.total(),
        "files": files.total(),
        "measure parameters": len(set(inspect.signature(ls.measure).parameters) - {"config"}),
        "stored columns": sum(len(table.columns) for table in TABLES.values()),
        "document words": sum(pages.values()),
        "README words": words_of((ROOT / "README.md").read_text(encoding="utf-8")),
    }
    print(f"  {'docstrings':<16} {documented:>7,} lines; {len(pages)} pages of documents")
    for name, number in found.items():
        print(f"  {name:<18} {number:>7,}  budget {BUDGETS[name]:>7,}")


if __name__ == "__main__":
    main()
