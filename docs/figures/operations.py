"""The list of docs/operations.md, read from the rules of Taylor mode: `python docs/figures/operations.py [--write]`."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

from loopscope.readout.general.taylor import KINKS, operations

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"

# In the order of the page: the file of the rules, and what the page calls them.
GROUPS = {
    "elementwise": "Arithmetic and smooth functions",
    "activations": "Activations",
    "piecewise": "Comparing, choosing, ordering",
    "reductions": "Sums, means, products and norms over axes",
    "normalise": "Norms of layers, softmax",
    "products": "Linear maps, products, convolutions",
    "attention": "Attention",
    "whole_layers": "Whole layers",
    "structural": "Moving and picking entries",
    "writing": "Writing entries, new tensors",
    "conversions": "Copies, dtypes, facts",
}
# Rules that refuse, and names that only torch's own code calls.
REFUSED = ("item", "random")
INTERNAL = ("gated_silu_joined", "rotate_own", "_threshold")


def lists() -> str:
    """The operations of each file."""
    found = []
    for file, title in GROUPS.items():
        module = importlib.import_module(f"loopscope.readout.general.taylor.{file}")
        names = sorted(
            name
            for name, rule in operations().items()
            if rule.__module__ == module.__name__ and rule.__name__ not in REFUSED and name not in INTERNAL
        )
        found.append(f"**{title}**: {', '.join(f'`{name}`' for name in names)}.")
    return "\n\n".join(found)


def kinks() -> str:
    """What is taken where an operation is not smooth: operations that share a sentence share a row."""
    rows: dict[str, list[str]] = {}
    for name, kink in sorted(KINKS.items()):
        if name not in INTERNAL:
            rows.setdefault(kink, []).append(name)
    lines = ["| operation | at the kink |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {', '.join(f'`{n}`' for n in names)} | {kink} |" for kink, names in rows.items())])


def refused() -> str:
    """The names of rules that refuse."""
    names = sorted(name for name, rule in operations().items() if rule.__name__ in REFUSED)
    return ", ".join(f"`{name}`" for name in names)


def write(page: str) -> str:
    """The page with its generated parts as the code has them."""
    for name, text in {"operations": lists(), "kinks": kinks(), "refused": refused()}.items():
        pattern = rf"(<!-- generated: {name} -->\n\n).*?(\n\n<!-- end -->)"
        page, count = re.subn(pattern, lambda m, text=text: m[1] + text + m[2], page, flags=re.DOTALL)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"{PAGE.name} has no place for {name!r}")
    return page


def main() -> None:
    """Print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="update docs/operations.md")
    page = write(PAGE.read_text(encoding="utf-8"))
    if parser.parse_args().write:
        PAGE.write_text(page, encoding="utf-8")
    else:
        print(page)


if __name__ == "__main__":
    main()
