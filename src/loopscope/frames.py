"""Stored rows as users get them: outcomes by name instead of by code, and pandas where it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from loopscope.errors import LoopscopeError
from loopscope.path import Outcome

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl

    Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


def with_outcome_names(frame: Frame) -> Frame:
    """The frame with its column `outcome`, where it has one as stored, as an ordered category of the paper's words.

    >>> import polars as pl
    >>> with_outcome_names(pl.DataFrame({"outcome": [3, 0]}, {"outcome": pl.Int8}))["outcome"].to_list()
    ['finite-step failure', 'progressing']
    """
    import polars as pl

    if frame.collect_schema().get("outcome") != pl.Int8:
        return frame
    labels = [outcome.label for outcome in Outcome]
    # A code that no version wrote is null.
    named = pl.col("outcome").replace_strict(list(Outcome), labels, default=None, return_dtype=pl.Enum(labels))
    return frame.with_columns(named)


def to_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    """The same frame for pandas; enums become categories."""
    try:
        return frame.to_pandas()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pandas":
            raise
        raise LoopscopeError("to_pandas() needs pandas: pip install 'loopscope[notebook]'") from error
