"""One flipped bit anywhere in a sealed run: every reading call gives what it gave before, or one line that names it."""

import io
import json
import random
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from loopscope.cli.app import exit_code
from loopscope.errors import LoopscopeError
from loopscope.report import write_report
from loopscope.run import Run
from loopscope.stats import Bootstrap
from loopscope.store import SCHEMA_VERSION, Manifest, open_or_create, verify
from loopscope.store.run import StoredRun
from loopscope.studies import open_records
from loopscope.studies.comparison import compare

Make = Callable[..., Manifest]
Measure = Callable[..., StoredRun]

FEW = Bootstrap(resamples=20)
READINGS: dict[str, Callable[[Run], Any]] = {
    "manifest": lambda run: run.manifest.encode(),
    "finished": lambda run: run.finished,
    "records": lambda run: run.records,
    "depths": lambda run: run.depths,
    "examples": lambda run: run.examples,
    "tokens": lambda run: run.tokens.collect(),
    "some tokens": lambda run: run.tokens.filter(pl.col("gain") > 0).select("row", "slope").head(9).collect(),
    "paths": lambda run: run.paths.collect(),
    "unit": lambda run: run.read_shard("tokens", run.units[2]).to_pydict(),
    "verify": lambda run: verify(run.path),
}


def page(run: Run) -> bytes:
    """The report, without the name of its folder."""
    with tempfile.TemporaryDirectory() as folder:
        return write_report([run.path], Path(folder) / "report.html", FEW).read_bytes()


def commanded(*arguments: str) -> Callable[[Run], str]:
    """What a command prints; its one line of error is raised as one, after its exit code was looked at."""

    def read(run: Run) -> str:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = exit_code([arguments[0], str(run.path), *arguments[1:]])
        if code:
            assert (code, out.getvalue()) == (2, "")
            raise LoopscopeError(err.getvalue().removesuffix("\n"))
        return out.getvalue()

    return read


STUDIES: dict[str, Callable[[Run], Any]] = {
    "compare": lambda run: compare(open_records(run), FEW, "mechanism").to_text(),
    "page": page,
    "loopscope tables": commanded("tables", "--name", "depth-coverage"),
    "loopscope compare": commanded("compare", "--name", "depth-coverage"),
    "table": lambda run: run.table("mechanism", FEW).to_text(),
    "token table": lambda run: run.table("tokens", FEW).to_text(),
    "figure": lambda run: json.dumps(run.figure("direction-progress", FEW).shown, default=float),
}


def same(one: Any, other: Any) -> bool:
    return one.equals(other) if isinstance(one, pl.DataFrame) else one == other


def kinds(path: Path) -> dict[str, list[Path]]:
    """The files of a run by what they are: each kind has the same chance, however many files it has. Not the log."""
    found: dict[str, list[Path]] = {}
    for file in sorted(file for file in path.rglob("*") if file.is_file() and file.name != "events.jsonl"):
        found.setdefault(file.name if file.parent == path else file.parent.name, []).append(file)
    return found


def opened(path: Path) -> Callable[[], Run]:
    """Opens a run once, and fails as often as it is asked."""
    try:
        run = Run(path)
    except LoopscopeError as error:
        refusal = error

        def refuse() -> Run:
            raise refusal

        return refuse
    return lambda: run


def flip_and_read(path: Path, flips: int, seed: int, readings: dict[str, Callable[[Run], Any]]) -> dict[str, int]:
    """Flip, read everything, flip back; how many readings of each kind of file were refused."""
    before = {name: read(Run(path)) for name, read in readings.items()}
    chance = random.Random(seed)
    refused = dict.fromkeys(kinds(path), 0)
    for number in range(flips):
        kind = list(refused)[number % len(refused)]
        file = chance.choice(kinds(path)[kind])
        whole = file.read_bytes()
        place, bit = chance.randrange(len(whole)), chance.randrange(8)
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit
        file.write_bytes(flipped)
        where = f"bit {bit} of byte {place} of {file.relative_to(path)}"
        run = opened(path)
        for name, read in readings.items():
            try:
                found = read(run())
            except LoopscopeError as error:
                said = str(error)
            else:
                if same(found, before[name]):
                    continue
                assert name == "verify", f"{where}: {name} gives something else than before"
                said = "; ".join(map(str, found.findings))
            assert file.stem in said, f"{where}: {name}: {said}"
            assert "\n" not in said, f"{where}: {name}: {said}"
            refused[kind] += 1
        file.write_bytes(whole)
    assert all(same(read(Run(path)), before[name]) for name, read in readings.items())
    return refused


SHARDS = {"examples", "questions", "depths", "tokens", "paths"}
ALL_KINDS = SHARDS | {"units", "manifest.json", ".loopscope.lock"}


def check(refused: dict[str, int], each: int) -> None:
    assert set(refused) == ALL_KINDS
    assert refused.pop(".loopscope.lock") == 0
    # No bit of a shard goes unseen: the table's own reading and `verify` refuse it, each.
    assert all(refused[kind] >= 2 * each for kind in SHARDS), refused
    assert all(refused.values()), refused


def test_24_flipped_bits(copy: Path) -> None:
    check(flip_and_read(copy, 24, seed=1, readings=READINGS), each=3)


def real_run(path: Path) -> Path:
    """Measured rows, said to be of one of the paper's models and tasks, so that there is something to compare."""
    measured = Run(Path(__file__).parent / "data" / "6c86db7")
    model = {**measured.manifest.model.model_dump(), "spec": "ByteDance/Ouro-1.4B", "name": "ByteDance/Ouro-1.4B"}
    tasks = [task.model_dump() for task in measured.manifest.tasks]
    tasks[0]["name"] = "math500"
    changes = {"model": {**model, "toy": False}, "tasks": tasks, "settings": {}, "schema_version": SCHEMA_VERSION}
    manifest = Manifest(**{**measured.manifest.model_dump(), **changes})
    with open_or_create(path, manifest) as writer:
        for unit, old in zip(writer.units, measured.units, strict=True):
            names = [table.name for table in manifest.tables()]
            writer.commit(unit, {name: measured.read_shard(name, old).drop_columns(["task"]) for name in names})
        return writer.finish().path


@pytest.mark.parametrize("readings", [[], pytest.param(["page"], marks=pytest.mark.slow)])
def test_flipped_bits_under_tables_figures_the_comparison_and_the_command_line(
    readings: list[str], tmp_path: Path
) -> None:
    path = real_run(tmp_path / "run")
    assert compare(open_records(path), FEW, "mechanism").rows
    studies = {name: read for name, read in STUDIES.items() if name != "page" or name in readings}
    refused = flip_and_read(path, 9, seed=2, readings=studies)
    assert min(refused["units"], refused["manifest.json"]) >= len(studies)
    assert refused["questions"] >= len(studies) - 3
    assert refused["examples"]
    assert refused["depths"]
    assert refused["tokens"]


@pytest.mark.slow
def test_2000_flipped_bits(copy: Path) -> None:
    check(flip_and_read(copy, 2_000, seed=3, readings=READINGS), each=200)


def test_a_frame_that_was_scanned_before_the_damage_is_refused_when_it_is_collected(copy: Path) -> None:
    lazy = Run(copy).tokens.select(pl.col("gain").sum())
    assert lazy.collect().height == 1
    shard = copy / "tokens" / "000003.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(LoopscopeError, match=r"tokens/000003\.parquet does not match its hash; the same `measure`"):
        lazy.collect()


def test_the_same_command_repairs_what_readers_refuse(
    copy: Path, make_manifest: Make, measure: Measure, undisturbed: Path
) -> None:
    before = StoredRun(undisturbed).records
    for name in ("questions/000002.parquet", "units/000001.json"):
        data = bytearray((copy / name).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / name).write_bytes(data)
    with pytest.raises(LoopscopeError, match="the same `measure` command repairs it"):
        Run(copy).records  # noqa: B018
    assert measure(copy, make_manifest()).records.equals(before)
    assert verify(copy).ok
    assert Run(copy).events[-1]["event"] == "unit"
