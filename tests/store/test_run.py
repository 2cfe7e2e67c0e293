import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from loopscope.errors import LoopscopeError
from loopscope.store import TABLES, Manifest, StoredRun, WorkUnit, open_or_create

Make = Callable[..., Manifest]
Tables = Callable[[Manifest, WorkUnit], dict[str, Any]]
Measure = Callable[..., StoredRun]


@pytest.fixture
def copy(tmp_path: Path, undisturbed: Path) -> Path:
    shutil.copytree(undisturbed, tmp_path / "run")
    return tmp_path / "run"


def test_the_tables_hold_what_was_committed(undisturbed: Path, make_manifest: Make, make_tables: Tables) -> None:
    run = StoredRun(undisturbed)
    assert run.manifest == make_manifest(command_line=())
    unit = run.units[3]
    expected = make_tables(run.manifest, unit)
    for name in (table.name for table in run.manifest.tables()):
        frame = run.read(name).filter((pl.col("task") == unit.task) & pl.col("row").is_between(0, unit.stop - 1))
        assert frame.columns == list(TABLES[name].names)
        for key, values in expected[name].items():
            assert frame[key].to_list() == [list(each) if hasattr(each, "shape") else each for each in values]


def test_shapes_and_laziness(undisturbed: Path) -> None:
    run = StoredRun(undisturbed)
    assert run.records.shape[0] == 24
    assert run.records is run.records
    assert run.depths.shape[0] == 60
    assert run.examples.shape[0] == 12
    assert isinstance(run.tokens, pl.LazyFrame)
    assert isinstance(run.paths, pl.LazyFrame)
    assert run.paths.select(pl.col("gain").list.len().unique()).collect().item() == 257


def test_an_unfinished_run_shows_what_is_committed(tmp_path: Path, make_manifest: Make, make_tables: Tables) -> None:
    with open_or_create(tmp_path / "run", make_manifest()) as writer:
        assert StoredRun(tmp_path / "run").records.shape == (0, len(TABLES["questions"].columns))
        writer.commit(writer.units[1], make_tables(writer.manifest, writer.units[1]))
        run = StoredRun(tmp_path / "run")
    assert not run.finished
    assert [unit.index for unit in run.missing_units] == [0, 2, 3, 4]
    assert run.records["row"].unique().to_list() == [3, 4, 5]
    assert repr(run).endswith("level full, 1 of 5 units>")


def test_an_uncommitted_shard_is_not_read(copy: Path) -> None:
    (copy / "units" / "000000.json").unlink()
    run = StoredRun(copy)
    assert not run.finished
    assert run.records.shape[0] == 18


def one_line(copy: Path, expected: str) -> None:
    """Everything that reads says the same; opening works, for `verify` and for who asks what is missing."""
    run = StoredRun(copy)
    assert [unit.index for unit in run.missing_units] == [1]
    assert repr(run).endswith("4 of 5 units, 1 damaged>")
    for name in ("records", "depths", "examples", "tokens", "paths", "finished"):
        with pytest.raises(LoopscopeError, match=expected) as caught:
            getattr(run, name)
        assert "the same `measure` command repairs it in place" in str(caught.value)
        assert "loopscope measure" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_missing_shard_is_one_line(copy: Path) -> None:
    (copy / "depths" / "000001.parquet").unlink()
    one_line(copy, r"depths/000001\.parquet is gone")


def test_a_truncated_shard_is_one_line(copy: Path) -> None:
    shard = copy / "depths" / "000001.parquet"
    shard.write_bytes(shard.read_bytes()[:-1])
    one_line(copy, r"depths/000001\.parquet has \d+ bytes instead of \d+")


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(LoopscopeError, match=r"is not a run: it holds no manifest\.json"):
            StoredRun(path)


def test_a_damaged_manifest_is_one_line(copy: Path) -> None:
    (copy / "manifest.json").write_text('{"schema_version": 1, "level": "quick"}')
    with pytest.raises(LoopscopeError, match=r"is damaged \(loopscope_version: Field required\)"):
        StoredRun(copy)


def test_tables_that_were_not_measured_are_one_line(tmp_path: Path, make_manifest: Make, measure: Measure) -> None:
    run = measure(tmp_path / "run", make_manifest(tokens=False, paths=False, level="quick"))
    with pytest.raises(LoopscopeError, match="measured without tokens: measure again with tokens=True"):
        run.tokens  # noqa: B018
    with pytest.raises(LoopscopeError, match="there is no table 'colours'"):
        run.read("colours")


def test_a_folder_name_with_pattern_characters_is_read(tmp_path: Path, undisturbed: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "runs [a*b]?")
    assert StoredRun(tmp_path / "runs [a*b]?").records.shape[0] == 24
    assert StoredRun(tmp_path / "runs [a*b]?").tokens.collect().shape[0] == 98
