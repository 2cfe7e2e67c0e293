"""One flipped bit in any file that a reading uses: every command says what it said, or one line that names the file.

The files are those of a run with every table, of the same questions measured on a train split, and of the heads that
`control` learned from both. `make test` flips one bit in each kind of file, `make test-slow` flips 500.
"""

import io
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import loopscope as ls
from loopscope.cli.app import exit_code
from loopscope.studies.figures import FigureResult

pytest.importorskip("flint")

COMMANDS = {
    "tables": "tables {run} --all",
    "report": "report {run} --output {page}",
    "compare": "compare {run}",
    "control": "control {run}",
    "heads": "control {run} --heads {heads}",
    "diff": "diff {run} {copy}",
    "verify": "verify {run} --no-replay",
}
"""What is said of each flip; `heads` takes a pass of the model, so it is asked of the files of heads alone."""
UNREAD = {".loopscope.lock"}


@pytest.fixture(scope="module")
def rich(made_once: Callable[..., Path]) -> Path:
    """A run with every table, a vocabulary, events and what `verify --bitwise` found; a copy of it; learned heads."""

    def fill(folder: Path) -> None:
        run = ls.measure(
            "toy-ouro", tasks=["arithmetic:train", "arithmetic"], transitions=[4], depths=[1, 2, 4, 5], level="full",
            tokens=True, paths=True, trace=True, lens=2, certify=True, scales_to=2, limit=2,
            protocol="loopscope:unit_size=1", output=folder / "run", device="cpu", dtype="float32",
        )  # fmt: skip
        assert run.verify(bitwise=True).ok
        shutil.copytree(run.path, folder / "copy")
        ls.control(run, heads=folder / "heads")

    return made_once("flipped-bits", fill)


class Opened:
    """The files that commands open, from an audit hook, which Python never removes: made once for the process."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()
        sys.addaudithook(self.heed)

    def heed(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            self.paths.add(Path(arguments[0]))


@pytest.fixture(scope="session")
def opened() -> Opened:
    return Opened()


def said(folder: Path, command: str) -> tuple[int, str, str]:
    """The exit code of a command, what it printed (with the page that it wrote), and its line on stderr."""
    out, err, page = io.StringIO(), io.StringIO(), folder / "page.html"
    page.unlink(missing_ok=True)
    names = {"run": folder / "run", "copy": folder / "copy", "heads": folder / "heads", "page": page}
    with redirect_stdout(out), redirect_stderr(err):
        code = exit_code(COMMANDS[command].format(**names).split())
    return code, out.getvalue() + (page.read_text() if page.exists() else ""), err.getvalue()


def kinds(folder: Path) -> dict[str, list[Path]]:
    """The files by what they are: each kind has the same chance, however many files it has."""
    found: dict[str, list[Path]] = {}
    for path in sorted(path for part in ("run", "heads") for path in (folder / part).rglob("*") if path.is_file()):
        found.setdefault(path.name if path.parent.name == "run" else path.parent.name, []).append(path)
    return found


@pytest.mark.parametrize("flips", [pytest.param(0, id="each kind"), pytest.param(500, marks=pytest.mark.slow)])
def test_a_flipped_bit_changes_nothing_or_is_named(
    rich: Path, flips: int, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only commands that open the file are given again: to the others it makes no difference.

    Figures of the page are given as what they show: to draw them takes three seconds a page.
    """
    monkeypatch.setattr("matplotlib.figure.Figure.draw_without_rendering", lambda figure: None)
    monkeypatch.setattr(FigureResult, "drawn", lambda figure, *_: repr(figure.shown).encode())
    folder = Path(shutil.copytree(rich, tmp_path / "rich"))
    before, reads = {}, {}
    for name in COMMANDS:
        opened.paths.clear()
        before[name] = said(folder, name)
        reads[name] = set(opened.paths)
    assert all((code, err) == (0, "") for code, _, err in before.values())
    chance, refused, wrong = random.Random(flips), Counter[str](), []
    files = kinds(folder)
    for number in range(flips or len(files)):
        kind = list(files)[number % len(files)]
        path = chance.choice(files[kind])
        whole = path.read_bytes()
        place, bit = chance.randrange(len(whole)), chance.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        reading = [name for name in COMMANDS if path in reads[name] and name != "heads"]
        for name in ["heads"] if kind == "heads" else reading:
            try:
                code, out, err = said(folder, name)
            except Exception as error:  # what would be a traceback
                code, out, err = 1, "", repr(error)
            named = code == 2 and err.count("\n") == 1 and path.stem in err + out
            refused[kind] += named
            if not named and (code, out, err) != before[name]:
                where = path.relative_to(folder)
                wrong.append(
                    f"bit {bit} of byte {place} of {where}: {name}: exit {code}, {err.strip() or 'other output'}"
                )
        path.write_bytes(whole)
    print(f"{number + 1} flips; refused by kind of file: {dict(refused)}")
    assert not wrong, "\n".join(wrong)
    assert {kind for kind in files if not refused[kind]} == UNREAD, "no bit of anything else goes unseen"
