import json
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loopscope.store import TABLES, Finding, Manifest, StoredRun, sha256_bytes, verify
from loopscope.store.records import Completion, Shard, load_record
from loopscope.store.shards import encode

Make = Callable[..., Manifest]
Measure = Callable[..., StoredRun]


@pytest.fixture
def copy(tmp_path: Path, undisturbed: Path) -> Path:
    shutil.copytree(undisturbed, tmp_path / "run")
    return tmp_path / "run"


def forge(path: Path, table: str, column: str, values: list[object], unit: int = 0) -> None:
    """Rewrite a column of a shard together with its record and the seal: only the contents can tell."""
    run = StoredRun(path)
    shard = run.layout.shard(table, run.units[unit])
    data = pq.ParquetFile(shard).read()
    field = data.schema.field(column)
    index = data.column_names.index(column)
    data = data.set_column(index, field, pa.array(values, field.type)) if values else data.slice(0, len(data) - 1)
    contents = encode(TABLES[table], data)
    shard.write_bytes(contents)
    record = load_record(run.layout, run.units[unit])
    forged = Shard(table=table, rows=len(data), bytes=len(contents), sha256=sha256_bytes(contents))
    shards = tuple(forged if shard.table == table else shard for shard in record.shards)
    run.layout.record(run.units[unit]).write_bytes(record.model_copy(update={"shards": shards}).encode())
    run = StoredRun(path)
    run.layout.complete.write_bytes(
        Completion.of(run.manifest, [run.unit_records[unit.index] for unit in run.units]).encode()
    )


def test_a_sound_run_is_found_sound(undisturbed: Path) -> None:
    result = verify(undisturbed)
    assert result.ok
    assert (result.units_checked, result.units_planned) == (5, 5)
    assert result.rows == {"examples": 12, "questions": 24, "depths": 60, "tokens": 98, "paths": 24}
    assert not result.replayed


def test_a_flipped_byte_is_found(copy: Path) -> None:
    shard = copy / "tokens" / "000004.parquet"
    data = bytearray(shard.read_bytes())
    data[100] ^= 4
    shard.write_bytes(data)
    (finding,) = verify(copy).findings
    assert finding == Finding("damaged", "unit 000004", "tokens/000004.parquet does not match its hash")


def test_a_missing_unit_is_found(copy: Path) -> None:
    (copy / "units" / "000002.json").unlink()
    result = verify(copy)
    assert [str(finding) for finding in result.findings] == ["missing: unit 000002: no record"]
    assert result.units_checked == 4


def test_a_missing_seal_is_found(copy: Path) -> None:
    (copy / "complete.json").unlink()
    assert [finding.kind for finding in verify(copy).findings] == ["seal"]


def test_leftovers_and_strangers_are_found(copy: Path) -> None:
    (copy / "paths" / "000000.parquet.partial").write_bytes(b"")
    (copy / "paths" / "mine.parquet").write_bytes(b"")
    findings = verify(copy).findings
    assert [finding.kind for finding in findings] == ["leftover", "leftover"]
    assert findings[0].where == "paths/000000.parquet.partial"
    assert "mine.parquet" in findings[1].message


def test_a_forged_gain_is_found(copy: Path) -> None:
    forge(copy, "questions", "gain", [0.5] * 6)
    kinds = {finding.kind for finding in verify(copy).findings}
    assert kinds == {"consistency"}


def test_a_forged_outcome_is_found(copy: Path) -> None:
    forge(copy, "tokens", "outcome", [1] * 8)
    (finding,) = verify(copy).findings
    assert finding.kind == "consistency"
    assert "tokens.outcome is not the class of slope and gain in 8 rows" in finding.message


def test_a_forged_nan_is_found(copy: Path) -> None:
    forge(copy, "depths", "utility", [float("nan")] * 15)
    (finding,) = verify(copy).findings
    assert finding.kind == "value"


def test_a_forged_null_is_found(copy: Path) -> None:
    forge(copy, "questions", "fp64_slope", [None] * 6)
    (finding,) = verify(copy).findings
    assert finding == Finding("null", "unit 000000", "questions.fp64_slope: 6 of 6 cells are missing")


def test_a_dropped_row_is_found(copy: Path) -> None:
    forge(copy, "depths", "utility", [])
    (finding,) = verify(copy).findings
    assert finding.kind == "coverage"


def test_other_examples_than_the_manifest_names_are_found(
    tmp_path: Path, make_manifest: Make, measure: Measure
) -> None:
    manifest = make_manifest()
    wrong = manifest.tasks[0].model_copy(update={"ids_sha256": "0" * 64})
    run = measure(tmp_path / "run", make_manifest(tasks=(wrong, manifest.tasks[1])))
    (finding,) = verify(run).findings
    assert finding == Finding("examples", "sums (test)", "the example identifiers are not those of the manifest")


def test_a_shard_that_is_no_parquet_is_found(copy: Path) -> None:
    run = StoredRun(copy)
    shard = copy / "depths" / "000000.parquet"
    shard.write_bytes(b"nonsense")
    record = load_record(run.layout, run.units[0])
    shards = tuple(
        shard.model_copy(update={"bytes": 8, "sha256": sha256_bytes(b"nonsense")}) if shard.table == "depths" else shard
        for shard in record.shards
    )
    run.layout.record(run.units[0]).write_bytes(record.model_copy(update={"shards": shards}).encode())
    assert [finding.kind for finding in verify(copy).findings] == ["schema"]


def test_a_replay_adds_what_it_finds(undisturbed: Path) -> None:
    def replay(run: StoredRun) -> list[Finding]:
        row = run.records.filter(pl.col("row") == 0).row(0, named=True)
        return [Finding("replay", row["example_id"], "slope came out otherwise")]

    result = verify(undisturbed, replay)
    assert result.replayed
    assert [str(finding) for finding in result.findings] == ["replay: sums-00000: slope came out otherwise"]


def test_a_damaged_run_is_not_replayed(copy: Path) -> None:
    (copy / "complete.json").write_text(json.dumps({}))

    def replay(run: StoredRun) -> list[Finding]:
        raise AssertionError("must not be called")

    assert not verify(copy, replay).replayed


@pytest.mark.parametrize("harm", ["shard", "record", "seal"])
def test_the_advice_for_damage_is_the_same_command_and_it_works(
    harm: str, copy: Path, make_manifest: Make, measure: Measure
) -> None:
    names = {"shard": "paths/000001.parquet", "record": "units/000002.json", "seal": "complete.json"}
    path = copy / names[harm]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = verify(copy)
    assert not result.ok
    assert result.advice == "the same `measure` command repairs it in place"
    measure(copy, make_manifest())
    assert verify(copy).ok


def test_the_advice_for_forged_rows_is_to_remove_their_record_and_it_works(
    copy: Path, make_manifest: Make, measure: Measure
) -> None:
    forge(copy, "questions", "gain", [0.5] * 6)
    result = verify(copy)
    assert result.advice.startswith("remove the records (units/NNNNNN.json) of the units named here, then the same")
    assert {finding.where for finding in result.findings} == {"unit 000000"}
    measure(copy, make_manifest())
    assert not verify(copy).ok
    (copy / "units" / "000000.json").unlink()
    measure(copy, make_manifest())
    assert verify(copy).ok


def test_the_advice_for_other_numbers_is_another_folder(undisturbed: Path) -> None:
    result = verify(undisturbed, lambda run: [Finding("replay", "unit 000000", "slope came out otherwise")])
    assert result.advice == "measure it again into another folder"
