"""Other people's readers open the shards as they are."""

from pathlib import Path

import polars as pl
import pyarrow.dataset as ds
import pytest

from loopscope.store import StoredRun


def test_polars_opens_the_shards(undisturbed: Path) -> None:
    frame = pl.scan_parquet(undisturbed / "questions" / "*.parquet").collect()
    assert frame.equals(StoredRun(undisturbed).records)


def test_pyarrow_opens_the_shards(undisturbed: Path) -> None:
    table = ds.dataset(undisturbed / "questions", format="parquet").to_table()
    assert table.to_pylist() == StoredRun(undisturbed).records.to_dicts()


def test_pandas_opens_the_shards(undisturbed: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(undisturbed / "questions")
    records = StoredRun(undisturbed).records
    assert frame["gain"].tolist() == records["gain"].to_list()
    assert [list(row) for row in frame["grid_gain"]] == records["grid_gain"].to_list()


def test_duckdb_opens_the_shards(undisturbed: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    rows = duckdb.sql(
        f"SELECT task, row, transition, gain, grid_gain[21], len(curvature_path), fp64_optimum_kind"
        f" FROM '{undisturbed}/questions/*.parquet' ORDER BY task DESC, row, transition"
    ).fetchall()
    records = StoredRun(undisturbed).records
    expected = [
        (row["task"], row["row"], row["transition"], row["gain"], row["grid_gain"][20], 5, row["fp64_optimum_kind"])
        for row in records.to_dicts()
    ]
    assert rows == expected


def test_duckdb_joins_the_tables(undisturbed: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    joined = duckdb.sql(
        f"SELECT count(*) FROM '{undisturbed}/questions/*.parquet' q JOIN '{undisturbed}/depths/*.parquet' d"
        " ON q.task = d.task AND q.row = d.row AND d.depth = q.transition AND d.utility = q.utility_before"
    ).fetchall()
    assert joined == [(24,)]
