"""The lens of one question as a notebook shows it: the likeliest token at every reference token after every loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from loopscope.display import SOFT, Markup, element, html_table
from loopscope.errors import LoopscopeError, setting
from loopscope.report.question_html import visible

if TYPE_CHECKING:
    from loopscope.report.question_view import QuestionView

LENS_COLUMNS = ("option", "token", "depth", "reference", "says", "probability", "rank", "lens_ids", "lens_probs")
STRONGEST = 0.55
"""Opacity of a cell whose reference is certain."""
MOST_TOKENS = 120
"""Tokens that a notebook shows; `frame` has all of them."""


@dataclass(frozen=True)
class LensView:
    """The likeliest tokens; a notebook draws them, `frame` has the numbers."""

    question: QuestionView

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row per reference token and loop: `reference`, `says`, `probability` (of the reference), `rank`, …"""
        run = self.question.run
        if not run.manifest.lens:
            raise LoopscopeError(f"{run.path} has no lens: measure again with {setting('lens', 5)}")
        texts = run.vocabulary or []
        found = self.question.rows_of(run.trace).collect().sort("option", "token", "depth")

        def words(ids: pl.Series) -> pl.Series:
            return pl.Series([texts[each] if each < len(texts) else f"#{each}" for each in ids], dtype=pl.String)

        named = {"reference": words(found["token_id"]), "says": words(found["top_id"])}
        found = found.with_columns(**named, probability=pl.col("log_prob").exp())
        return found.select(LENS_COLUMNS)

    def __repr__(self) -> str:
        tokens = self.frame.filter(depth=1).height
        return f"<Lens {self.question.title}: {tokens} tokens, {self.frame.height // tokens} loops; .frame has them>"

    def _repr_html_(self) -> str:
        trained = self.question.run.manifest.model.trained_depth
        tokens = list(self.frame.group_by("option", "token", maintain_order=True))
        lines = [
            [visible(cells["reference"][0]), *map(_cell, cells.iter_rows(named=True))]
            for _, cells in tokens[:MOST_TOKENS]
        ]
        heads = [f"{depth} (trained)" if depth == trained else str(depth) for depth in range(1, len(lines[0]))]
        said = "after each loop the likeliest token; its tint is the probability of the reference, × is another token"
        more = f"; {len(tokens) - MOST_TOKENS} more tokens are in .frame" if len(tokens) > MOST_TOKENS else ""
        title = f"{self.question.title.rpartition(' · ')[0]}, loop by loop"
        table = html_table(["reference", *heads], lines)
        return element("div", element("p", element("strong", title)), table, element("p", said + more, style=SOFT))


def _cell(cell: dict[str, Any]) -> Markup:
    style = f"padding:.1em .5em;white-space:pre;background:rgba(63,127,214,{STRONGEST * cell['probability']:.2f})"
    text = ("" if cell["rank"] == 1 else "× ") + visible(cell["says"]).replace("\n", "↵")
    return element("span", text, style=style, title=f"reference {100 * cell['probability']:.1f}%, rank {cell['rank']}")
