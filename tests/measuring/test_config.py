"""A setting is declared once: what follows from the declaration, for every setting and for one that is added."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from pydantic import create_model

import loopscope as ls
from loopscope.cli.app import Command
from loopscope.cli.flags import ConfigFlag, with_flags
from loopscope.cli.measure import settings_flags
from loopscope.errors import LoopscopeError
from loopscope.measuring.config import WHAT, MeasureConfig, declare, refuse_other_settings
from loopscope.store.schema import Level
from loopscope.store.writer import run_lock


def signature_gaps(model: type[MeasureConfig]) -> set[str]:
    """The settings that `measure` lacks or should not have."""
    taken = set(inspect.signature(ls.measure).parameters) - {"config"}
    return taken ^ set(model.arguments())


def command_of(model: type[MeasureConfig]) -> tuple[Any, dict[str, Any]]:
    """A command with the flags of a configuration, and what it was called with."""
    received: dict[str, Any] = {}

    @with_flags(settings_flags(model))
    def measure(*, config: ConfigFlag = None, **given: Any) -> None:
        received.update(given)

    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(cls=Command)(measure)
    return typer.main.get_command(app), received


def test_the_signature_is_the_declaration() -> None:
    assert signature_gaps(MeasureConfig) == set()
    assert len(MeasureConfig.arguments()) <= 30
    parameters = inspect.signature(ls.measure).parameters
    usual = {name: known.default for name, known in parameters.items() if name not in ("model", "tasks", "config")}
    plain: Any = {"model": "toy-ouro", "tasks": "arithmetic"}
    assert MeasureConfig(**plain, **usual).model_dump() == MeasureConfig(**plain).model_dump()
    hints = typing.get_type_hints(ls.measure)
    assert hints["return"] is ls.Run
    for name, field in MeasureConfig.arguments().items():
        assert f"{name}: {field.description}" in str(ls.measure.__doc__)


def test_an_added_setting_is_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    field = (int, declare(1, "How often to blink.", WHAT, metavar="N", ge=0, le=9))
    wider: Any = create_model("Wider", __base__=MeasureConfig, blinks=field)
    assert signature_gaps(wider) == {"blinks"}
    command, received = command_of(wider)
    page = command.get_help(click.Context(command, info_name="measure"))
    what = page[page.index(WHAT) : page.index("Data and prompts")]
    assert "--blinks N" in what
    assert "How often to blink." in what
    words = ["--model", "toy-ouro", "--tasks", "arithmetic"]
    monkeypatch.setenv("LOOPSCOPE_BLINKS", "3")
    command(words, standalone_mode=False)
    assert received["blinks"] == "3"
    monkeypatch.delenv("LOOPSCOPE_BLINKS")
    (tmp_path / "flags.yaml").write_text("blinks: 4\n")
    command([*words, "--config", str(tmp_path / "flags.yaml")], standalone_mode=False)
    assert received["blinks"] == "4"
    monkeypatch.setenv("LOOPSCOPE_CONFIG", str(tmp_path / "flags.yaml"))
    command([*words], standalone_mode=False)
    config = wider(**{name: value for name, value in received.items() if value is not None})
    assert config.for_manifest()["blinks"] == 4
    with pytest.raises(LoopscopeError, match="blinks=10: Input should be less than or equal to 9"):
        wider(model="toy-ouro", tasks="arithmetic", blinks=10)


def test_a_configuration_is_an_argument_and_what_is_given_stands_above_it(tmp_path: Path) -> None:
    config = MeasureConfig(model="toy-ouro", tasks="arithmetic", limit=2, level="quick", device="cpu", unit_size=2)
    run = ls.measure(config=config, output=tmp_path / "run", limit=1)
    assert (run.manifest.tasks[0].rows, run.manifest.level, run.manifest.unit_size) == (1, "quick", 2)
    paper = config.but(protocol="paper:unit_size=4,readout_dtype=float64")
    assert (paper.dtype, paper.batch_size, paper.readout_dtype) == ("bfloat16", "paper", "float64")
    assert paper.unit_size == 2, "what was given stands above the protocol"


def test_the_first_update_beyond_the_trained_depth_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = ls.measure("toy-ouro", "arithmetic", limit=2, level="quick", device="cpu")
    assert run.manifest.transitions == (4,)
    assert run.path.parent == Path("runs")
    assert "4→5" in str(run)
    again = ls.measure("toy-ouro", "arithmetic", limit=2, depths=[1, 2], level="quick", device="cpu")
    assert again.manifest.transitions == ()
    assert again.path != run.path


def test_a_run_is_overwritten_only_where_that_is_asked_for(tmp_path: Path) -> None:
    given: dict[str, Any] = {"limit": 1, "level": "quick", "device": "cpu", "output": tmp_path / "run"}
    ls.measure("toy-ouro", "arithmetic", dtype="float32", **given)
    with pytest.raises(LoopscopeError, match="resume refused: dtype was float32, is float64: choose another output="):
        ls.measure("toy-ouro", "arithmetic", dtype="float64", **given)
    with run_lock(tmp_path / "run" / ".loopscope.lock"), pytest.raises(LoopscopeError, match="is being written by"):
        ls.measure("toy-ouro", "arithmetic", dtype="float64", overwrite=True, **given)
    run = ls.measure("toy-ouro", "arithmetic", dtype="float64", overwrite=True, **given)
    assert run.manifest.dtypes.states == "float64"
    other = run.manifest.model_copy(update={"level": Level.GRID, "settings": {"long": "skip"}})
    with pytest.raises(LoopscopeError, match="level was quick, is grid; long was error, is skip"):
        refuse_other_settings(run.manifest, other)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(LoopscopeError):
        ls.measure("toy-ouro", "arithmetic", overwrite=True, **{**given, "output": tmp_path / "mine"})
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
