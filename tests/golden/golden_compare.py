"""What a golden run and a run of today's code have in common, and every difference in words.

Numbers may differ by rounding: columns computed in float64 by 1e-10, those in float32 by 1e-5, relative to 1 + |value|.
Everything else must be equal. An outcome may change only where the slope or the gain is zero within that margin.
Columns whose rounding differs more from processor to processor have their own margins in changes.toml.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

HERE = Path(__file__).parent
DATA = HERE / "data"
FP64, FP32 = 1e-10, 1e-5
FP64_TABLES = ("paths", "certificates")
FP64_STUDIES = (
    *("refined-optima", "bound-selected", "scale-bounds", "integrated-bounds", "optimum-refinement", "certificates"),
)  # fmt: skip
KEYS = ("task", "split", "row", "transition", "depth", "option", "token")


def changes() -> dict[str, Any]:
    """What was removed or added on purpose since the golden runs were made."""
    return tomllib.loads((HERE / "changes.toml").read_text())


def margins(table: str) -> dict[str, float]:
    """The margins of a table's columns that rounding moves more than others."""
    found: dict[str, float] = changes()["rounding"].get(table, {})
    return found


def golden_frames(name: str) -> dict[str, pl.DataFrame]:
    """The stored tables of a golden run, with columns that have become others as they are now."""
    frames = {path.stem: pl.read_parquet(path) for path in sorted((DATA / name).glob("*.parquet"))}
    if "as_in_paper" in frames:
        frames["questions"] = with_paper_numbers(frames["questions"], frames["as_in_paper"])
    for table, lists in changes()["columns"]["lists"].items():
        if table in frames:
            found = {now: parts for now, parts in lists.items() if set(parts) <= set(frames[table].columns)}
            known = {
                now: pl.all_horizontal(pl.col(part).is_not_null() for part in parts) for now, parts in found.items()
            }
            made = [pl.when(known[now]).then(pl.concat_list(parts)).alias(now) for now, parts in found.items()]
            frames[table] = frames[table].with_columns(made).drop(part for parts in found.values() for part in parts)
    return frames


def with_paper_numbers(questions: pl.DataFrame, paper: pl.DataFrame) -> pl.DataFrame:
    """Under the paper's protocol `questions` holds what stood in `as_in_paper`."""
    keys = ["task", "split", "row", "transition"]
    both = questions.join(paper, on=keys, how="left", suffix=" in paper", maintain_order="left")
    shared = [name for name in paper.columns if name in questions.columns and name not in keys]
    both = both.with_columns(pl.coalesce(f"{name} in paper", name).alias(name) for name in shared)
    return both.drop(f"{name} in paper" for name in shared)


def golden_studies(name: str) -> dict[str, dict[str, list[Any]]]:
    """The study tables of a golden run, as columns."""
    found: dict[str, dict[str, list[Any]]] = json.loads((DATA / name / "studies.json").read_text())
    return found


def frame_differences(
    table: str, golden: pl.DataFrame, frame: pl.DataFrame, removed: list[str], added: list[str]
) -> Iterator[str]:
    """One line for each column that is not as it was."""
    yield from (f"{table}.{name} is listed as removed and is there" for name in removed if name in frame.columns)
    new = [name for name in frame.columns if name not in golden.columns and name not in added]
    golden = golden.drop(removed, strict=False)
    yield from (f"{table}.{name} is new: list it in changes.toml" for name in new)
    gone = [name for name in golden.columns if name not in frame.columns]
    yield from (f"{table}.{name} is gone" for name in gone)
    if len(golden) != len(frame):
        yield f"{table} has {len(frame)} rows instead of {len(golden)}"
        return
    margin = margins(table)
    keys = [name for name in KEYS if name in golden.columns and name in frame.columns]
    golden, frame = golden.sort(keys, maintain_order=True), frame.sort(keys, maintain_order=True)
    for name in golden.columns:
        if name in gone:
            continue
        unclear = _unclear(golden) if name == "outcome" else np.zeros(len(golden), bool)
        fp64 = table in FP64_TABLES or name.startswith("fp64_")
        tolerance = margin.get(name, FP64 if fp64 else FP32)
        pairs = zip(golden[name].to_list(), frame[name].to_list(), unclear, strict=True)
        differing = [(old, now) for old, now, skip in pairs if not skip and not close(old, now, tolerance)]
        if isinstance(golden[name].dtype, pl.Int32 | pl.Int64) and name in margin:
            differing = [(old, now) for old, now in differing if abs(old - now) > margin[name]]
        if differing:
            old, now = differing[0]
            yield f"{table}.{name}: {len(differing)} rows differ, first {_short(now)} instead of {_short(old)}"


def study_differences(
    study: str, golden: Mapping[str, list[Any]], columns: Mapping[str, list[Any]], removed: list[str], added: list[str]
) -> Iterator[str]:
    """One line for each column of a study table that is not as it was."""
    usual, margin = FP64 * 10 if study in FP64_STUDIES else FP32, margins(study)
    yield from (f"{study}: column {name} is new" for name in columns if name not in golden and name not in added)
    for name, old in golden.items():
        tolerance = margin.get(name, usual)
        if name in removed:
            continue
        if name not in columns:
            yield f"{study}: column {name} is gone"
        elif len(old) != len(columns[name]):
            yield f"{study}.{name} has {len(columns[name])} rows instead of {len(old)}"
        elif not close(old, columns[name], tolerance):
            pairs = zip(old, columns[name], strict=True)
            row, (was, now) = next((i, pair) for i, pair in enumerate(pairs) if not close(*pair, tolerance))
            yield f"{study}.{name}, row {row}: {_short(now)} instead of {_short(was)}"


def close(old: Any, new: Any, tolerance: float) -> bool:
    """Whether two cells are equal, numbers within the tolerance.

    >>> close([1.0, None], [1.0 + 1e-12, None], 1e-10), close(3, 3.0, 1e-10), close(0.5, -0.5, 1e-10)
    (True, False, False)
    """
    if isinstance(old, list):
        same_length = isinstance(new, list) and len(old) == len(new)
        return same_length and all(close(a, b, tolerance) for a, b in zip(old, new, strict=True))
    if isinstance(old, float):
        if not isinstance(new, float):
            return False
        if not (np.isfinite(old) and np.isfinite(new)):
            return bool(np.array_equal(old, new, equal_nan=True))
        return abs(new - old) <= tolerance * (1.0 + abs(old))
    return type(old) is type(new) and bool(old == new)


def _unclear(golden: pl.DataFrame) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Rows whose outcome hangs on a rounding error."""
    if not {"slope", "gain"} <= set(golden.columns) or golden["gain"].dtype == pl.List:
        return np.zeros(len(golden), bool)
    return np.minimum(golden["slope"].abs().to_numpy(), golden["gain"].abs().to_numpy()) <= FP32


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
