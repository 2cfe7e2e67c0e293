import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.store import Level, Manifest, StoredRun, verify
from loopscope.store.manifest import WorkUnit, ids_sha256
from loopscope.store.writer import open_or_create

Contents = Callable[[Path], dict[str, bytes]]
Make = Callable[..., Manifest]
Tables = Callable[[Manifest, WorkUnit], dict[str, Any]]
Measure = Callable[..., StoredRun]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x01
    path.write_bytes(data)


def test_bytes_do_not_depend_on_the_order_of_units_or_rows(
    tmp_path: Path, undisturbed: Path, make_manifest: Make, make_tables: Tables, contents: Contents
) -> None:
    with open_or_create(tmp_path / "run", make_manifest()) as writer:
        for unit in reversed(writer.pending()):
            tables = make_tables(writer.manifest, unit)
            reverse = {name: {key: values[::-1] for key, values in columns.items()} for name, columns in tables.items()}
            writer.commit(unit, reverse)
        writer.finish()
    assert contents(tmp_path / "run") == contents(undisturbed)


@pytest.mark.parametrize(("table", "harm"), [("questions", "flip"), ("tokens", "delete"), ("paths", "grow")])
def test_a_damaged_shard_is_found_and_measured_again(
    table: str, harm: str, copy: Path, undisturbed: Path, make_manifest: Make, measure: Measure, contents: Contents
) -> None:
    shard = copy / table / "000002.parquet"
    data = shard.read_bytes()
    match harm:
        case "flip":
            flip(shard, len(data) // 2)
        case "delete":
            shard.unlink()
        case "grow":
            shard.write_bytes(data + b"x")
    with open_or_create(copy, make_manifest()) as writer:
        assert writer.status == "resumed"
        assert [unit.index for unit in writer.pending()] == [2]
        assert len(writer.discarded) == 1
        assert f"{table}/000002.parquet" in writer.discarded[0]
    measure(copy)
    assert contents(copy) == contents(undisturbed)


def test_shards_swapped_between_units_are_found(copy: Path, make_manifest: Make) -> None:
    one, two = copy / "questions" / "000000.parquet", copy / "questions" / "000001.parquet"
    swapped = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(swapped)
    with open_or_create(copy, make_manifest()) as writer:
        assert [unit.index for unit in writer.pending()] == [0, 1]


def test_a_unit_of_another_run_does_not_count(
    copy: Path, tmp_path: Path, make_manifest: Make, measure: Measure
) -> None:
    other = measure(tmp_path / "other", make_manifest(seeds={"initial_state": 1})).path
    for folder in ("units", "examples", "questions", "depths", "tokens", "paths"):
        for file in (other / folder).glob("000002.*"):
            shutil.copy(file, copy / folder / file.name)
    with open_or_create(copy, make_manifest()) as writer:
        assert [unit.index for unit in writer.pending()] == [2]
        assert "another manifest" in writer.discarded[0]


def test_committing_a_unit_twice_keeps_the_first(tmp_path: Path, make_manifest: Make, make_tables: Tables) -> None:
    with open_or_create(tmp_path / "run", make_manifest()) as writer:
        unit = writer.units[0]
        first = writer.commit(unit, make_tables(writer.manifest, unit))
        before = (tmp_path / "run" / "questions" / "000000.parquet").read_bytes()
        changed = make_tables(writer.manifest, unit)
        changed["questions"]["slope"][0] = 123.0
        assert writer.commit(unit, changed) == first
    assert (tmp_path / "run" / "questions" / "000000.parquet").read_bytes() == before


@pytest.mark.parametrize("number", [float("nan"), float("-inf"), 1e200])
def test_a_number_that_is_not_finite_is_named_with_its_example(
    number: float, tmp_path: Path, make_manifest: Make, make_tables: Tables
) -> None:
    with open_or_create(tmp_path / "run", make_manifest()) as writer:
        unit = writer.units[0]
        tables = make_tables(writer.manifest, unit)
        tables["questions"]["slope"][3] = number
        with pytest.raises(
            LoopscopeError, match=r"questions\.slope is not finite for example 'sums-00003'.*dtype='float32'"
        ):
            writer.commit(unit, tables)
        assert writer.pending()[0] == unit
        assert not list((tmp_path / "run" / "questions").iterdir())


def test_rows_of_the_wrong_unit_are_refused(tmp_path: Path, make_manifest: Make, make_tables: Tables) -> None:
    with open_or_create(tmp_path / "run", make_manifest()) as writer:
        one, two = writer.units[:2]
        with pytest.raises(ValueError, match="rows are not the 3 of the unit"):
            writer.commit(one, make_tables(writer.manifest, two))


@pytest.mark.parametrize("level", list(Level))
def test_every_level_writes_and_verifies(level: Level, tmp_path: Path, make_manifest: Make, measure: Measure) -> None:
    run = measure(tmp_path / "run", make_manifest(level=level, tokens=False, paths=False))
    assert verify(run).ok
    filled = {name for name in run.records.columns if run.records[name].null_count() < len(run.records)}
    assert ("grid_gain" in filled) == level.includes(Level.GRID)
    assert ("fp64_gain" in filled) == level.includes(Level.FULL)


def test_no_file_but_the_log_holds_a_machine_path(copy: Path) -> None:
    for file in copy.rglob("*.json"):
        assert os.fsencode(copy.parent) not in file.read_bytes()
        json.loads(file.read_text())


@given(st.lists(st.text()), st.lists(st.text()))
def test_only_equal_identifier_lists_have_equal_digests(one: list[str], two: list[str]) -> None:
    assert (ids_sha256(one) == ids_sha256(two)) == (one == two)
