"""What an opened run gives: tables, the log and the vocabulary, or one line; other readers of its files."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.dataset as ds
import pytest

from loopscope.errors import LoopscopeError
from loopscope.models.tokenizer import load_tokenizer
from loopscope.path import CURVATURE_SCALES, DIFFERENCE_SPACINGS, GRID, PATH_NODES
from loopscope.store import Level, Manifest, StoredRun, verify
from loopscope.store.manifest import WorkUnit
from loopscope.store.schema import GAIN_SCALES, MIN_P, TABLES, Column
from loopscope.store.writer import open_or_create, write_vocabulary

Make = Callable[..., Manifest]
Tables = Callable[[Manifest, WorkUnit], dict[str, Any]]
Measure = Callable[..., StoredRun]


def test_the_tables_hold_what_was_committed(undisturbed: Path, make_manifest: Make, make_tables: Tables) -> None:
    run = StoredRun(undisturbed)
    assert run.manifest == make_manifest()
    assert run.records is run.records
    unit = run.units[3]
    expected = make_tables(run.manifest, unit)
    for name in (table.name for table in run.manifest.tables()):
        frame = run.read(name).filter((pl.col("task") == unit.task) & pl.col("row").is_between(0, unit.stop - 1))
        assert frame.columns == list(TABLES[name].names)
        for key, values in expected[name].items():
            assert frame[key].to_list() == [list(each) if hasattr(each, "shape") else each for each in values]


def test_an_unfinished_run_shows_what_is_committed(tmp_path: Path, make_manifest: Make, make_tables: Tables) -> None:
    with open_or_create(tmp_path / "run", make_manifest()) as writer:
        assert StoredRun(tmp_path / "run").records.shape == (0, len(TABLES["questions"].columns))
        assert StoredRun(tmp_path / "run").tokens.collect().shape == (0, len(TABLES["tokens"].columns))
        writer.commit(writer.units[1], make_tables(writer.manifest, writer.units[1]))
        run = StoredRun(tmp_path / "run")
    assert not run.finished
    assert [unit.index for unit in run.missing_units] == [0, 2, 3, 4]
    assert run.records["row"].unique().to_list() == [3, 4, 5]
    assert repr(run).endswith("level full, 1 of 5 units>")


def test_a_record_that_does_not_count_is_an_error_of_everything_that_reads(copy: Path) -> None:
    (copy / "units" / "000001.json").write_text("[" * 200_000)
    run = StoredRun(copy)
    assert [unit.index for unit in run.missing_units] == [1]
    assert repr(run).endswith("4 of 5 units, 1 damaged>")
    for name in ("records", "depths", "examples", "tokens", "paths", "finished"):
        with pytest.raises(LoopscopeError, match="unit 000001: the record does not match its own digest") as caught:
            getattr(run, name)
        assert str(caught.value).endswith("; the same `measure` command repairs it in place")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lambda shard: shard.unlink(), "cannot be read .*No such file"),
        (lambda shard: shard.write_bytes(shard.read_bytes()[:-1]), "does not match its hash"),
        (lambda shard: shard.write_bytes(shard.read_bytes() + b"x" * 2**20), "cannot be read .*it has more than"),
    ],
)
def test_a_lost_cut_or_grown_shard_is_one_line(harm: Callable[[Path], Any], expected: str, copy: Path) -> None:
    harm(copy / "depths" / "000001.parquet")
    for read in (lambda run: run.depths, lambda run: run.scan("depths").collect()):
        with pytest.raises(LoopscopeError, match=rf"depths/000001\.parquet {expected}.*the same `measure` command"):
            read(StoredRun(copy))


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(LoopscopeError, match=r"is not a run: it holds no manifest\.json"):
            StoredRun(path)


def test_tables_that_were_not_measured_are_one_line(tmp_path: Path, make_manifest: Make, measure: Measure) -> None:
    run = measure(tmp_path / "run", make_manifest(tokens=False, paths=False, level="quick"))
    with pytest.raises(LoopscopeError, match="measured without tokens: measure again with tokens=True"):
        run.tokens  # noqa: B018
    with pytest.raises(LoopscopeError, match="there is no table 'colours'"):
        run.read("colours")


def test_a_folder_name_with_pattern_characters_is_read(tmp_path: Path, undisturbed: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "runs [a*b]?")
    assert StoredRun(tmp_path / "runs [a*b]?").tokens.collect().shape[0] == 98


def test_a_lazy_frame_gives_what_polars_gives(copy: Path) -> None:
    ours, plain = StoredRun(copy).tokens, pl.scan_parquet(copy / "tokens" / "*.parquet")
    assert ours.collect_schema() == plain.collect_schema()
    queries: list[Callable[[pl.LazyFrame], pl.LazyFrame]] = [
        lambda frame: frame,
        lambda frame: frame.head(7),
        lambda frame: frame.filter(pl.col("task") == "choices").select("row", "gain"),
        lambda frame: frame.filter(pl.col("row") == 4).head(3).select(pl.col("slope") * 2),
        lambda frame: frame.group_by("transition").agg(pl.len(), pl.col("row").sum()).sort("transition"),
        lambda frame: frame.select(pl.len()),
    ]
    for query in queries:
        assert query(ours).collect().equals(query(plain).collect())
        assert query(ours).collect(engine="streaming").equals(query(plain).collect())


def test_a_frame_that_was_scanned_before_the_damage_is_refused_when_it_is_collected(copy: Path) -> None:
    lazy = StoredRun(copy).tokens.select(pl.col("gain").sum())
    assert lazy.collect().height == 1
    shard = copy / "tokens" / "000003.parquet"
    shard.write_bytes(shard.read_bytes()[::-1])
    with pytest.raises(LoopscopeError, match=r"tokens/000003\.parquet does not match its hash; the same `measure`"):
        lazy.collect()


def test_other_readers_open_the_shards(undisturbed: Path) -> None:
    records = StoredRun(undisturbed).records
    assert pl.scan_parquet(undisturbed / "questions" / "*.parquet").collect().equals(records)
    assert ds.dataset(undisturbed / "questions", format="parquet").to_table().to_pylist() == records.to_dicts()
    pandas = pytest.importorskip("pandas").read_parquet(undisturbed / "questions")
    assert [list(row) for row in pandas["grid_gain"]] == records["grid_gain"].to_list()
    joined = pytest.importorskip("duckdb").sql(
        f"SELECT q.gain, q.grid_gain[21] FROM '{undisturbed}/questions/*.parquet' q"
        f" JOIN '{undisturbed}/depths/*.parquet' d"
        " ON q.task = d.task AND q.row = d.row AND d.depth = q.transition AND d.utility = q.utility_before"
        " ORDER BY q.task DESC, q.row, q.transition"
    )
    assert joined.fetchall() == [(row["gain"], row["grid_gain"][20]) for row in records.to_dicts()]


def test_the_log_is_whole_lines_that_match_their_digests(tmp_path: Path, make_manifest: Make) -> None:
    path = tmp_path / "run" / "events.jsonl"
    with open_or_create(tmp_path / "run", make_manifest()) as writer:
        writer.log("one", value=1, name="\udcff ∑")
    with path.open("ab") as file:
        file.write(b'{"event": "to')  # a kill cut it off
    assert [event["event"] for event in StoredRun(tmp_path / "run").events] == ["new", "one"]
    open_or_create(tmp_path / "run", make_manifest()).close()
    events = StoredRun(tmp_path / "run").events
    assert [event["event"] for event in events] == ["new", "one", "resumed"]
    assert events[1]["name"] == "\udcff ∑"
    path.write_bytes(path.read_bytes().replace(b'"value": 1', b'"value": 2'))
    with pytest.raises(LoopscopeError, match=r"events.jsonl is damaged in line 2: remove that line"):
        StoredRun(tmp_path / "run").events  # noqa: B018
    assert [finding.where for finding in verify(tmp_path / "run").findings][-1] == "events.jsonl"
    path.unlink()
    assert StoredRun(tmp_path / "run").events == []


TEXT = "Petra hands 12 apples to Adam, who has  none.\nAnswer: 12"


@pytest.mark.parametrize("name", ["toy-ouro", "toy-huginn"])
def test_the_texts_of_ids_join_to_the_text_they_came_from(name: str) -> None:
    tokenizer = load_tokenizer(name)
    texts = tokenizer.texts()
    assert len(texts) == tokenizer.vocabulary_size
    assert "".join(texts[each] for each in tokenizer.encode(TEXT)) == TEXT


def test_a_vocabulary_is_whole_and_of_the_runs_tokenizer(tmp_path: Path, measure: Measure, make_manifest: Make) -> None:
    run = measure(tmp_path / "run")
    write_vocabulary(run.path, run.manifest, ["month", "day ∑", "half \ud83d of a pair"])
    assert run.vocabulary == ["month", "day ∑", "half ? of a pair"]
    path = run.layout.vocabulary
    whole = path.read_bytes()
    for damaged in (whole.replace(b"month", b"mouth"), whole.replace(b"]", b""), b"", b"[" * 200_000):
        path.write_bytes(damaged)
        assert [finding.where for finding in verify(run).findings] == [path.name]
        with pytest.raises(LoopscopeError, match="is damaged: remove it and give the same `measure` command again"):
            StoredRun(run.path).vocabulary  # noqa: B018
    write_vocabulary(run.path, make_manifest(tokenizer_sha256="0" * 64), ["a"])
    assert StoredRun(run.path).vocabulary is None


def test_the_grids_are_the_papers() -> None:
    assert len(GRID) == 21
    assert GRID[::5] == CURVATURE_SCALES
    assert (GRID[1], GRID[-1]) == (0.05, 1.0)
    questions, paths = TABLES["questions"], TABLES["paths"]
    lengths = {column.name: column.length for column in (*questions.columns, *paths.columns)}
    assert (lengths["grid_gain"], lengths["curvature_path"]) == (len(GRID), len(CURVATURE_SCALES))
    assert lengths["fp64_third_relative_gap"] == len(DIFFERENCE_SPACINGS)
    assert lengths["gain"] == PATH_NODES
    assert TABLES["trace"].column("gains").length == len(GAIN_SCALES)
    assert f"below {MIN_P:g}·max" in TABLES["trace"].column("kl_min_p").meaning


def test_levels_are_ordered() -> None:
    column = Column("x", "float64", "", "x", Level.GRID)
    assert [column.required(level, 1) for level in Level] == [False, True, True]
    assert not Column("x", "float64", "", "x", since=2).required(Level.FULL, 1)


def test_importing_the_store_brings_in_no_heavy_library() -> None:
    heavy = ["torch", "numpy", "pyarrow", "polars", "pydantic"]
    script = f"import sys, loopscope.store; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
