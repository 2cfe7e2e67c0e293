import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from loopscope._errors import LoopscopeError
from loopscope.store import TABLES, Manifest, Run, WorkUnit, open_or_create

Make = Callable[..., Manifest]
Tables = Callable[[Manifest, WorkUnit], dict[str, Any]]
Measure = Callable[..., Run]


@pytest.fixture
def copy(tmp_path: Path, undisturbed: Path) -> Path:
    shutil.copytree(undisturbed, tmp_path / "run")
    return tmp_path / "run"


def test_the_tables_hold_what_was_committed(undisturbed: Path, make_manifest: Make, make_tables: Tables) -> None:
    run = Run(undisturbed)
    assert run.manifest == make_manifest()
    unit = run.units[3]
    expected = make_tables(run.manifest, unit)
    for name in TABLES:
        frame = run.read(name).filter((pl.col("task") == unit.task) & pl.col("row").is_between(0, unit.stop - 1))
        assert frame.columns == list(TABLES[name].names)
        for stored, given in zip(frame.to_dicts(), expected[name], strict=True):
            given = {key: list(value) if hasattr(value, "shape") else value for key, value in given.items()}
            assert {key: stored[key] for key in given} == given


def test_shapes_and_laziness(undisturbed: Path) -> None:
    run = Run(undisturbed)
    assert run.records.shape[0] == 24
    assert run.records is run.records
    assert run.depths.shape[0] == 60
    assert run.examples.shape[0] == 12
    assert isinstance(run.tokens, pl.LazyFrame)
    assert isinstance(run.paths, pl.LazyFrame)
    assert run.paths.select(pl.col("alpha").list.len().unique()).collect().item() == 257


def test_an_unfinished_run_shows_what_is_committed(tmp_path: Path, make_manifest: Make, make_tables: Tables) -> None:
    with open_or_create(tmp_path / "run", make_manifest()) as writer:
        assert Run(tmp_path / "run").records.shape == (0, len(TABLES["questions"].columns))
        writer.commit(writer.units[1], make_tables(writer.manifest, writer.units[1]))
        run = Run(tmp_path / "run")
    assert not run.finished
    assert [unit.index for unit in run.missing_units] == [0, 2, 3, 4]
    assert run.records["row"].unique().to_list() == [3, 4, 5]
    assert repr(run).endswith("level full, 1 of 5 units>")


def test_an_uncommitted_shard_is_not_read(copy: Path) -> None:
    (copy / "units" / "000000.json").unlink()
    run = Run(copy)
    assert not run.finished
    assert run.damage == {0: "no record"}
    assert run.records.shape[0] == 18


def test_a_missing_shard_makes_its_unit_missing(copy: Path) -> None:
    (copy / "depths" / "000001.parquet").unlink()
    run = Run(copy)
    assert [unit.index for unit in run.missing_units] == [1]
    assert run.damage[1] == "depths/000001.parquet is gone"
    assert not run.finished


def test_a_truncated_shard_makes_its_unit_missing(copy: Path) -> None:
    shard = copy / "depths" / "000001.parquet"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "bytes instead of" in Run(copy).damage[1]
    assert len(Run(copy).depths) == 45


def test_a_corrupt_shard_of_the_same_size_is_one_line(copy: Path) -> None:
    shard = copy / "questions" / "000001.parquet"
    shard.write_bytes(b"\0" * shard.stat().st_size)
    with pytest.raises(LoopscopeError, match=r"cannot read the questions .*loopscope verify"):
        Run(copy).read("questions")


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(LoopscopeError, match=r"is no run: it holds no manifest\.json"):
            Run(path)


def test_a_damaged_manifest_is_one_line(copy: Path) -> None:
    (copy / "manifest.json").write_text('{"schema_version": 1, "level": "quick"}')
    with pytest.raises(LoopscopeError, match=r"is damaged \(loopscope_version: Field required\)"):
        Run(copy)


def test_tables_that_were_not_measured_are_one_line(tmp_path: Path, make_manifest: Make, measure: Measure) -> None:
    run = measure(tmp_path / "run", make_manifest(tokens=False, paths=False, level="quick"))
    with pytest.raises(LoopscopeError, match="measured without tokens: measure again with tokens=True"):
        run.tokens  # noqa: B018
    with pytest.raises(LoopscopeError, match="there is no table 'colours'"):
        run.read("colours")


def test_a_folder_name_with_pattern_characters_is_read(tmp_path: Path, undisturbed: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "runs [a*b]?")
    assert Run(tmp_path / "runs [a*b]?").records.shape[0] == 24
    assert Run(tmp_path / "runs [a*b]?").tokens.collect().shape[0] == 98
