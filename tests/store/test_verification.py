from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from loopscope.errors import LoopscopeError
from loopscope.store import Manifest, StoredRun, verify
from loopscope.store.verification import Finding, Replayed, stored_verification
from tests.forged import forge, with_column

Make = Callable[..., Manifest]
Measure = Callable[..., StoredRun]


def forge_column(path: Path, table: str, column: str, value: float) -> None:
    run = StoredRun(path)
    forge(run, table, run.units[0], lambda data: with_column(data, column, pa.array([value] * len(data))))


def test_a_sound_run_is_found_sound(undisturbed: Path) -> None:
    result = verify(undisturbed)
    assert result.ok
    assert (result.units_checked, result.units_planned) == (5, 5)
    assert result.rows == {"examples": 12, "questions": 24, "depths": 60, "tokens": 98, "paths": 24}
    assert not result.replayed


def test_a_missing_unit_is_found(copy: Path) -> None:
    (copy / "units" / "000002.json").unlink()
    result = verify(copy)
    assert [str(finding) for finding in result.findings] == ["missing: unit 000002: no record: it is not measured yet"]
    assert result.units_checked == 4


def test_leftovers_and_strangers_are_found(copy: Path) -> None:
    (copy / "paths" / "000000.parquet.partial").write_bytes(b"")
    (copy / "paths" / "mine.parquet").write_bytes(b"")
    findings = verify(copy).findings
    assert [finding.kind for finding in findings] == ["leftover", "stranger"]
    assert findings[0].where == "paths/000000.parquet.partial"
    assert findings[1].where == "paths/mine.parquet"


def test_a_forged_nan_is_found(copy: Path) -> None:
    forge_column(copy, "depths", "utility", float("nan"))
    (finding,) = verify(copy).findings
    assert finding == Finding("rows", "unit 000000", "depths/000000.parquet: depths.utility is not finite")
    with pytest.raises(LoopscopeError, match=r"is damaged: depths/000000.parquet .*depths.utility is not finite"):
        StoredRun(copy).read("depths")


def test_a_dropped_row_is_found(copy: Path) -> None:
    forge(StoredRun(copy), "depths", StoredRun(copy).units[0], lambda data: data.slice(0, len(data) - 1))
    (finding,) = verify(copy).findings
    assert finding.message == "depths: its 14 rows are not the 15 of the unit"


def test_other_examples_than_the_manifest_names_are_found(
    tmp_path: Path, make_manifest: Make, measure: Measure
) -> None:
    manifest = make_manifest()
    wrong = manifest.tasks[0].model_copy(update={"ids_sha256": "0" * 64})
    run = measure(tmp_path / "run", make_manifest(tasks=(wrong, manifest.tasks[1])))
    (finding,) = verify(run).findings
    assert finding == Finding("examples", "sums (test)", "the example identifiers are not those of the manifest")


def test_a_replay_adds_what_differs(undisturbed: Path) -> None:
    replayed = Replayed((Finding("replay", "sums-00000", "slope came out otherwise"),))
    result = verify(undisturbed, lambda run: replayed)
    assert result.replayed == replayed
    assert [str(finding) for finding in result.findings] == ["replay: sums-00000: slope came out otherwise"]
    assert result.advice == "measure it again into another folder"
    assert stored_verification(StoredRun(undisturbed)) is None


def test_a_damaged_run_is_not_replayed(copy: Path) -> None:
    (copy / "units" / "000001.json").write_text("{}")

    def replay(run: StoredRun) -> Replayed:
        raise AssertionError("must not be called")

    assert verify(copy, replay).replayed is None


@pytest.mark.parametrize("name", ["paths/000001.parquet", "units/000002.json"])
def test_the_advice_for_damage_is_the_same_command_and_it_works(
    name: str, copy: Path, make_manifest: Make, measure: Measure
) -> None:
    path = copy / name
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
    forge_column(copy, "questions", "gain", float("inf"))
    result = verify(copy)
    assert result.advice.startswith("remove the records (units/NNNNNN.json) of the units named here, then the same")
    assert {finding.where for finding in result.findings} == {"unit 000000"}
    measure(copy, make_manifest())
    assert not verify(copy).ok
    (copy / "units" / "000000.json").unlink()
    measure(copy, make_manifest())
    assert verify(copy).ok
