"""The policy for older run directories (docs/run-directory.md), on a run that loopscope 0.1.0 wrote.

`older_runs/0.1.0` is the output of that version, as it stands: `loopscope measure --model toy-ouro --tasks
arithmetic,arithmetic-mc --limit 4 --transitions 4 --level full --tokens --paths --dtype float32 --device cpu
--unit-size 3`. What this loopscope makes of it is compared with plain SQL over the Parquet files.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import loopscope as ls
from loopscope.errors import LoopscopeError
from loopscope.stats import Bootstrap
from loopscope.store import SCHEMA_VERSION, TABLES, StoredRun, verify
from loopscope.store.manifest import ASKED_BY
from loopscope.studies import TABLES as STUDIES

duckdb = pytest.importorskip("duckdb")
OLD = Path(__file__).parent / "older_runs" / "0.1.0"
FEW = Bootstrap(resamples=20)
LATER = {
    **dict.fromkeys(("--certify", "--trace", "--scales-to"), "measure with"),
    "several steps": "measure checkpoints",
}
"""What 0.1.0 could not measure: its runs are told how it is measured now."""
ROWS = {"examples": 8, "questions": 8, "depths": 16, "tokens": 318, "paths": 8}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def sql(query: str) -> list[tuple[Any, ...]]:
    """The rows of a query in which `@questions` is the shards of that table."""
    for table in TABLES:
        query = query.replace(f"@{table}", f"read_parquet('{OLD}/{table}/*.parquet')")
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


def test_it_opens_as_a_finished_run() -> None:
    run = ls.Run(OLD)
    assert (run.manifest.loopscope_version, run.manifest.schema_version) == ("0.1.0", 1)
    assert run.finished
    assert not run.missing_units
    assert [event["event"] for event in run.events] == ["new", "call", *["unit"] * 4, "complete"]


@pytest.mark.parametrize("table", [table for table in TABLES if table not in ASKED_BY])
def test_every_table_is_read_as_it_was_written(table: str) -> None:
    plain = pl.concat([pl.read_parquet(shard) for shard in sorted((OLD / table).glob("*.parquet"))])
    found = StoredRun(OLD).read(table)
    assert found.equals(plain)
    if "outcome" in plain.columns:
        words = ["progressing", "neutral", "directional failure", "finite-step failure"]
        assert ls.Run(OLD).read(table)["outcome"].to_list() == [words[code] for code in plain["outcome"]]
    assert found.height == sql(f"SELECT count(*) FROM @{table}")[0][0] == ROWS[table]
    assert found.columns == list(TABLES[table].names)


def test_it_verifies() -> None:
    found = verify(OLD)
    assert found.findings == ()
    assert (found.units_checked, found.units_planned, found.rows) == (4, 4, ROWS)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_makes_its_table(name: str) -> None:
    result = ls.Run(OLD).table(name, FEW)
    if (needs := STUDIES[name].needs) in LATER:
        assert result.rows == ()
        assert any(LATER[needs] in note for note in result.notes)
    else:
        assert "toy-ouro" in result.to_text()


def test_the_mechanism_table_has_the_numbers_of_the_shards() -> None:
    expected = sql(
        "SELECT avg(gain), avg(abs(slope - gain)), avg(abs(slope + quadratic - gain)), sum((gain < 0)::int),"
        " sum((gain < 0 and slope > 0)::int) FROM @questions GROUP BY task ORDER BY task"
    )
    rows = ls.Run(OLD).table("mechanism", FEW).rows
    assert [row.condition.task for row in rows] == ["arithmetic", "arithmetic-mc"]
    for row, (gain, linear, quadratic, harmful, finite_step) in zip(rows, expected, strict=True):
        found = (row.mean_gain.value, row.mae_slope.value, row.mae_quadratic.value)
        np.testing.assert_allclose(found, (gain, linear, quadratic), rtol=1e-12)
        assert (row.harmful, row.finite_step) == (harmful, finite_step)


def test_gains_are_those_of_the_depths_the_tokens_and_the_paths() -> None:
    gains = dict(sql("SELECT task || row, gain FROM @questions"))
    steps = sql(
        "SELECT a.task || a.row, b.utility - a.utility FROM @depths a JOIN @depths b USING (task, row)"
        " WHERE a.depth = 4 AND b.depth = 5"
    )
    means = sql("SELECT task || row, avg(gain) FROM @tokens WHERE task = 'arithmetic' GROUP BY ALL")
    ends = sql("SELECT task || row, gain[257] FROM @paths")
    assert (len(steps), len(means), len(ends)) == (8, 4, 8)
    for name, value in steps + means + ends:
        assert value == pytest.approx(gains[name], rel=1e-4, abs=1e-6)


def test_measuring_goes_on_only_with_the_code_that_began(
    old: Path, contents: Callable[[Path], dict[str, bytes]]
) -> None:
    before = contents(old)
    flags: dict[str, Any] = {"limit": 4, "level": "full", "tokens": True, "paths": True, "unit_size": 3}
    with pytest.raises(LoopscopeError, match=r"holds another run \(.*code_sha256 was .*choose another output="):
        ls.measure(
            "toy-ouro",
            tasks=["arithmetic", "arithmetic-mc"],
            transitions=[4],
            output=old,
            device="cpu",
            dtype="float32",
            **flags,
        )
    assert contents(old) == before


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        (SCHEMA_VERSION + 1, "upgrade loopscope to read it"),
        (0, r"read it with the loopscope that wrote it \(0\.1\.0\) or measure again"),
    ],
)
def test_another_schema_version_is_refused_with_the_loopscope_that_reads_it(
    old: Path, version: int, remedy: str
) -> None:
    """All of the directory's JSON is of the other version, as it would be in a run that another loopscope wrote."""
    for record in (old / "units").iterdir():
        record.write_bytes(b"{}\n")
    manifest = json.loads((old / "manifest.json").read_bytes())
    (old / "manifest.json").write_text(json.dumps({**manifest, "schema_version": version}))
    with pytest.raises(LoopscopeError, match=rf"has schema version {version} and this loopscope reads .*: {remedy}"):
        ls.Run(old)
