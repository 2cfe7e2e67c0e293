"""Runs of older versions are read as they are, on a run that the code of commit 6c86db7 wrote.

`data/6c86db7` is what that code wrote for `measure_with("toy-ouro", tasks=["arithmetic", "arithmetic-mc"],
transitions=[4], depths=[0, 1, 4, 5], level="full", tokens=True, paths=True, trace=True, lens=3, certify=True,
scales_to=2, protocol="paper", renormalise=True, limit={"arithmetic": 1, "arithmetic-mc": 3}, unit_size=2)`. Its table
`renormalised` is gone since. What this loopscope makes of it is compared with plain SQL over the Parquet files.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import loopscope as ls
from loopscope.api import measure_with
from loopscope.errors import LoopscopeError
from loopscope.stats import Bootstrap
from loopscope.store import StoredRun, schema, verify
from loopscope.store.schema import TABLES, Column, Table
from loopscope.studies import TABLES as STUDIES

duckdb = pytest.importorskip("duckdb")
OLD = Path(__file__).parent / "data" / "6c86db7"
FEW = Bootstrap(resamples=20)
TABLES_OF_RUN = [name for name in TABLES if (OLD / name).is_dir()]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema of a later version: two more columns and one more table."""
    version = schema.SCHEMA_VERSION + 1
    for module in ("schema", "manifest", "shards"):
        monkeypatch.setattr(f"loopscope.store.{module}.SCHEMA_VERSION", version)
    added = (
        Column("novelty", "float64", "nats", "a number", since=version),
        Column("list", "list<float32>", "nats", "numbers", length=3, since=version),
    )
    questions = TABLES["questions"]
    later = Table("later", "question", ("row",), TABLES["examples"].columns, since=version)
    monkeypatch.setitem(TABLES, "questions", replace(questions, columns=(*questions.columns, *added)))
    monkeypatch.setitem(TABLES, "later", later)


def sql(query: str) -> list[tuple[Any, ...]]:
    """The rows of a query in which `@questions` is the shards of that table."""
    for table in TABLES:
        query = query.replace(f"@{table}", f"read_parquet('{OLD}/{table}/*.parquet')")
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


def plain(table: str) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(shard) for shard in sorted((OLD / table).glob("*.parquet"))])


def test_it_opens_as_a_finished_run_that_verifies() -> None:
    run = ls.Run(OLD)
    assert (run.manifest.loopscope_version, run.manifest.schema_version) == ("0.1.0", 1)
    assert run.finished
    found = verify(OLD)
    assert found.findings == ()
    assert found.rows == {table: sql(f"SELECT count(*) FROM @{table}")[0][0] for table in TABLES_OF_RUN}


@pytest.mark.parametrize("table", TABLES_OF_RUN)
def test_every_table_is_read_as_it_was_written(table: str) -> None:
    found = StoredRun(OLD).read(table)
    assert found.columns == list(TABLES[table].names)
    held = [name for name in found.columns if name in plain(table).columns]
    assert found.select(held).equals(plain(table).select(held))
    if "outcome" in held:
        words = ["progressing", "neutral", "directional failure", "finite-step failure", None]
        codes = plain(table)["outcome"].fill_null(4)
        assert ls.Run(OLD).read(table)["outcome"].to_list() == [words[code] for code in codes]


@pytest.mark.usefixtures("grown")
def test_columns_that_are_newer_than_a_run_are_null() -> None:
    run = ls.Run(OLD)
    new = [column for column in TABLES["questions"].columns if column.since == schema.SCHEMA_VERSION]
    assert [column.name for column in new] == ["novelty", "list"]
    for frame in (
        run.records,
        run.scan("questions").collect(),
        run.scan("questions").filter(pl.col("row") >= 0).collect(),
    ):
        assert frame.columns == list(TABLES["questions"].names)
        assert [frame[column.name].null_count() for column in new] == [4, 4]
        assert frame.schema["list"] == pl.List(pl.Float32)
        assert frame.drop("novelty", "list")["gain"].to_list() == plain("questions")["gain"].to_list()
    assert run.scan("questions").select("novelty").collect()["novelty"].to_list() == [None] * 4
    assert verify(OLD).ok
    assert "toy-ouro" in run.table("mechanism", FEW).to_text()
    with pytest.raises(LoopscopeError, match="was measured without later: measure again with this loopscope"):
        run.read("later")


def test_a_run_of_a_newer_version_is_refused_in_one_line(old: Path, measure: Callable[..., StoredRun]) -> None:
    newer = schema.SCHEMA_VERSION + 1
    manifest = json.loads((old / "manifest.json").read_bytes()) | {"schema_version": newer, "colour": "red"}
    (old / "manifest.json").write_text(json.dumps(manifest))
    line = f"old has schema version {newer} and this loopscope reads versions up to {newer - 1}: upgrade loopscope"
    for use in (StoredRun, verify, measure):
        with pytest.raises(LoopscopeError, match=line) as caught:
            use(old)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_makes_its_table(name: str) -> None:
    result = ls.Run(OLD).table(name, FEW)
    assert "toy-ouro" in result.to_text() or result.notes


def test_the_mechanism_table_has_the_numbers_of_the_shards() -> None:
    expected = sql(
        "SELECT avg(gain), avg(abs(slope - gain)), avg(abs(slope + quadratic - gain)), sum((gain < 0)::int),"
        " sum((gain < 0 and slope > 0)::int) FROM @questions GROUP BY task ORDER BY task"
    )
    rows = ls.Run(OLD).table("mechanism", FEW).rows
    assert [row.condition.task for row in rows] == ["arithmetic", "arithmetic-mc"]
    for row, (gain, linear, quadratic, harmful, finite_step) in zip(rows, expected, strict=True):
        found = [row[name].value for name in ("mean_gain", "mae_slope", "mae_quadratic")]
        np.testing.assert_allclose(found, (gain, linear, quadratic), rtol=1e-12)
        assert (row["harmful"], row["finite_step"]) == (harmful, finite_step)


def test_measuring_goes_on_only_with_the_version_that_began(old: Path, contents: Callable[[Path], Any]) -> None:
    before = contents(old)
    with pytest.raises(LoopscopeError, match=r"holds another run \(.*schema_version was 1, is now .*choose another"):
        measure_with(
            "toy-ouro", tasks=["arithmetic", "arithmetic-mc"], transitions=[4], depths=[0, 1, 4, 5], level="full",
            tokens=True, paths=True, trace=True, lens=3, certify=True, scales_to=2, protocol="paper",
            limit={"arithmetic": 1, "arithmetic-mc": 3}, unit_size=2, output=old, device="cpu", dtype="float32",
        )  # fmt: skip
    assert contents(old) == before
