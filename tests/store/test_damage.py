"""One flipped bit in any file of a rich run: every reading gives what it gave, or one line that names the file.

`make test` flips 14 bits, one in each kind of file; `make test-slow` flips 500.
"""

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import loopscope as ls
from loopscope.api import measure_with
from loopscope.errors import LoopscopeError
from loopscope.report import write_report
from loopscope.run import Run
from loopscope.stats import Bootstrap
from loopscope.store import Manifest, verify
from loopscope.store.run import StoredRun
from loopscope.studies import open_records
from loopscope.studies.comparison import compare
from loopscope.studies.figures import FigureResult

pytest.importorskip("flint")

FEW = Bootstrap(resamples=20)
FEW_TABLES = (
    "depth-coverage",
    "mechanism",
    "certificates",
    "tokens",
    "control",
    "transition-selection",
)


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every table, a vocabulary, events and what `verify --bitwise` found; beside it a copy."""
    folder = tmp_path_factory.mktemp("rich")
    run = measure_with(
        "toy-ouro", tasks=["arithmetic:train", "arithmetic"], transitions=[4], depths=[1, 2, 4, 5], level="full",
        tokens=True, paths=True, trace=True, lens=2, certify=True, scales_to=2, limit=2, unit_size=1,
        output=folder / "run", device="cpu", dtype="float32",
    )  # fmt: skip
    assert run.verify(bitwise=True).ok
    shutil.copytree(run.path, folder / "copy")
    return run.path


def tables(path: Path, names: tuple[str, ...] = FEW_TABLES) -> list[str]:
    run = Run(path)
    return [run.table(name, FEW).to_text() for name in names]


def page(path: Path) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_report([path], Path(folder) / "report.html", FEW).read_bytes()


def frames(path: Path) -> list[Any]:
    run = Run(path)
    scanned = [run.scan(name).collect() for name in ("paths", "tokens", "trace")]
    return [frame.write_ndjson() for frame in scanned] + [run.backends_used, run.vocabulary]


def verified(path: Path) -> None:
    found = verify(path)
    if found.findings:
        raise LoopscopeError("; ".join(f"{finding.where}: {finding.message}" for finding in found.findings))


READINGS: dict[str, Callable[[Path], Any]] = {
    "tables": tables,
    "frames": frames,
    "report": page,
    "compare": lambda path: compare(open_records(path), FEW, "mechanism").to_text(),
    "control": lambda path: str(ls.control(path, bootstrap=FEW)),
    "diff": lambda path: ls.diff(path, path.with_name("copy"), bootstrap=FEW).to_text(),
    "verify": verified,
}


def kinds(path: Path) -> list[list[Path]]:
    """The files of a run by what they are: each kind has the same chance, however many files it has."""
    found: dict[str, list[Path]] = {}
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        found.setdefault(file.name if file.parent == path else file.parent.name, []).append(file)
    return list(found.values())


@pytest.mark.parametrize("flips", [pytest.param(14, id="14"), pytest.param(500, id="500", marks=pytest.mark.slow)])
def test_a_flipped_bit_changes_nothing_or_is_named(rich: Path, flips: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of the page are given as what they show: to draw them takes three seconds a page."""
    monkeypatch.setattr("matplotlib.figure.Figure.draw_without_rendering", lambda figure: None)
    monkeypatch.setattr(FigureResult, "drawn", lambda figure, *_: repr(figure.shown).encode())
    path, refused = rich, dict[str, int]()
    before = {name: read(path) for name, read in READINGS.items()}
    chance = random.Random(flips)
    for number in range(flips):
        file = chance.choice(kinds(path)[number % len(kinds(path))])
        whole = file.read_bytes()
        place, bit = chance.randrange(len(whole)), chance.randrange(8)
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        for name, read in READINGS.items():
            try:
                found, said = read(path), None
            except LoopscopeError as error:
                found, said = None, str(error)
            where = f"bit {bit} of byte {place} of {file.relative_to(path)}: {name}: {said}"
            if said is None:
                assert found == before[name], where
            else:
                assert file.stem in said, where
                assert "\n" not in said, where
                kind = file.name if file.parent == path else file.parent.name
                refused[kind] = refused.get(kind, 0) + 1
        file.write_bytes(whole)
    print(f"{flips} flips, readings refused by kind of file: {refused}")
    silent = {file.name if file.parent == rich else file.parent.name for files in kinds(rich) for file in files}
    assert silent - set(refused) == {".loopscope.lock"}, "no bit of anything else goes unseen"


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
    copy: Path, make_manifest: Callable[..., Manifest], measure: Callable[..., StoredRun], undisturbed: Path
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
