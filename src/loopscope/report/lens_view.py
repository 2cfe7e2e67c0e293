"""The lens of one question as a notebook shows it: what the model would say at every reference token after every loop.

A table with styles on the elements, as `question_html`: no script, nothing loaded, every text of the run escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from loopscope.display import SOFT, Markup, element
from loopscope.errors import LoopscopeError, setting
from loopscope.report.question_html import visible

if TYPE_CHECKING:
    from loopscope.report.question_view import QuestionView

STRONGEST = 0.55
"""Opacity of a cell whose reference is certain."""
MOST_TOKENS = 120
"""Tokens that a notebook shows; `frame` has all of them."""
_CELL = "padding:.1em .5em;white-space:pre;text-align:left"
_RULE = ";border-right:2px solid currentColor"


@dataclass(frozen=True)
class LensView:
    """What the model would say; a notebook draws it, `frame` has the numbers."""

    question: QuestionView

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row per reference token and loop: `reference`, `says`, `probability` (of the reference), `rank`, …"""
        run, example = self.question.run, self.question.example
        if not run.manifest.lens:
            raise LoopscopeError(f"{run.path} has no lens: measure again with {setting('lens', 5)}")
        texts = run.vocabulary or []
        rows = run.trace.filter(
            pl.col("task") == example["task"], pl.col("split") == example["split"], pl.col("row") == example["row"]
        )
        found = rows.collect().sort("option", "token", "depth")

        def words(ids: pl.Series) -> pl.Series:
            return pl.Series([texts[each] if each < len(texts) else f"#{each}" for each in ids], dtype=pl.String)

        return found.select(
            "option",
            "token",
            "depth",
            words(found["token_id"]).alias("reference"),
            words(found["top_id"]).alias("says"),
            pl.col("log_prob").exp().alias("probability"),
            "rank",
            "lens_ids",
            "lens_probs",
        )

    def __repr__(self) -> str:
        tokens = self.frame.filter(depth=1).height
        return f"<Lens {self.question.title}: {tokens} tokens, {self._loops} loops; .frame has them>"

    @property
    def _loops(self) -> int:
        return int(self.frame["depth"].max())  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        frame, depths = self.frame, range(1, self._loops + 1)
        trained = self.question.run.manifest.model.trained_depth
        heads = (element("th", str(depth), style=_CELL + (_RULE if depth == trained else "")) for depth in depths)
        lines: list[Markup] = []
        for _, cells in frame.group_by("option", "token", maintain_order=True):
            if len(lines) == MOST_TOKENS:
                break
            head = element("th", visible(cells["reference"][0]), style=_CELL)
            lines.append(element("tr", head, *(_cell(cell, trained) for cell in cells.iter_rows(named=True))))
        more = frame.filter(depth=1).height - len(lines)
        said = "the word is what the model would say, its tint the probability of the reference; × is not the reference"
        if trained:
            said += f"; trained with {trained} loops"
        return element(
            "div",
            element("p", element("strong", f"{self.question.title.rpartition(' · ')[0]}, loop by loop")),
            element(
                "table",
                element("tr", element("th", "reference", style=_CELL), *heads),
                *lines,
                style="border-collapse:collapse;font-size:.92em",
            ),
            element("p", said + (f"; {more} more tokens are in .frame" if more > 0 else ""), style=SOFT),
        )


def _cell(cell: dict[str, Any], trained: int | None) -> Markup:
    style = f"{_CELL};background:rgba(63,127,214,{STRONGEST * cell['probability']:.2f})"
    if cell["depth"] == trained:
        style += _RULE
    wrong = "" if cell["rank"] == 1 else "× "
    told = f"reference {100 * cell['probability']:.1f}%, rank {cell['rank']}"
    return element("td", wrong + visible(cell["says"]).replace("\n", "↵"), style=style, title=told)
