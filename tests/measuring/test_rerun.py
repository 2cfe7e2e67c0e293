"""Nothing in a run directory that names code, a template or a task file is followed unless the user names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import loopscope as ls
from loopscope.api import measure_with
from loopscope.cli.app import app
from loopscope.measuring.verify import Named, NotNamedError, config_of
from loopscope.store import StoredRun
from loopscope.store.writer import open_or_create

EVIL = """
from pathlib import Path
Path({marker!r}).write_text("ran")
def build(**given):
    raise SystemExit
f = build
"""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    output = tmp_path_factory.mktemp("sound") / "run"
    return measure_with(
        "toy-ouro", "arithmetic", output=output, transitions=[4], depths="1-5", level="quick", trace=True, limit=4,
        device="cpu",
    )  # fmt: skip


@pytest.fixture
def mailed(sound: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A run directory as a stranger may send it: sound hashes, and names of files that came with it."""
    folder = tmp_path / "mailed"
    folder.mkdir()
    (folder / "evil.py").write_text(EVIL.format(marker=str(tmp_path / "ran")))
    (folder / "evil.yaml").write_text("task: evil\ndataset_path: json\ndoc_to_text: !function evil.f\n")
    (folder / "evil.toml").write_text("kind = 'solution'\n")
    (folder / "evil.jsonl").write_text(json.dumps({"prompt": "a", "solution": "b"}) + "\n")
    (tmp_path / "toy-ouro:inside=mailed").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(folder))

    def made(spec: str = "toy-ouro", args: dict[str, Any] | None = None, **call: Any) -> Path:
        manifest = sound.manifest
        settings = {**manifest.settings, **({"model_args": args} if args else {})}
        model = manifest.model.model_copy(update={"spec": spec, "name": "evil"})
        altered = type(manifest)(**{**manifest.model_dump(), "model": model.model_dump(), "settings": settings})
        with open_or_create(str(folder / "run"), altered) as writer:
            writer.log("call", **{"tasks": ["arithmetic"], "folder": str(tmp_path), "limit": 4, **call})
            for unit in sound.units:
                frames = {t.name: sound.read_shard(t.name, unit) for t in sound.manifest.tables()}
                writer.commit(unit, frames)
            writer.finish()
        return folder / "run"

    return made


COMMANDS = (
    ["verify"],
    ["verify", "--bitwise"],
    ["control"],
    ["control", "--tier", "rerun"],
    ["control", "--tier", "generate"],
    ["control", "--heads", "heads"],
    ["tables"],
    ["figures"],
    ["compare"],
    ["report", "--output", "page.html"],
)
CODE: dict[str, dict[str, Any]] = {
    "file": {"spec": "mailed/evil.py:build"},
    "module": {"spec": "evil:build"},
    "model_args": {"args": {"inside": "mailed/evil.py:build"}},
    "lm-eval": {"tasks": ["lm_eval:mailed/evil.yaml"]},
}


@pytest.mark.parametrize("way", CODE)
def test_no_command_runs_code_that_a_run_names(way: str, mailed: Callable[..., Path], tmp_path: Path) -> None:
    told = json.loads(json.dumps(CODE[way]).replace("{folder}", str(tmp_path / "mailed")))
    run = mailed(**told)
    for command in COMMANDS:
        done = CliRunner().invoke(app, [*command, str(run)])
        assert not (tmp_path / "ran").exists(), command
        assert done.exception is None or isinstance(done.exception, SystemExit | ls.LoopscopeError), command
        computes = command[0] == "control" and (way != "lm-eval" or len(command) > 1)
        if computes and "lm-eval" not in way:
            assert done.exit_code != 0, (command, done.output)
    assert StoredRun(run).finished


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ({"tasks": ["mine=mailed/evil.jsonl"]}, Named(tasks=("mine=mailed/evil.jsonl",))),
        ({"tasks": ["mailed/evil.jsonl"]}, Named(tasks=("mailed/evil.jsonl",))),
        ({"tasks": ["lm_eval:mailed/evil.yaml"]}, Named(tasks=("lm_eval:mailed/evil.yaml",))),
        ({"template": "mailed/evil.toml"}, Named(template="mailed/evil.toml")),
    ],
)
def test_files_of_tasks_and_templates_are_followed_where_they_are_named(
    call: dict[str, Any], named: Named, mailed: Callable[..., Path]
) -> None:
    run = StoredRun(mailed(**call))
    with pytest.raises(NotNamedError, match=r"followed only where you name it: (tasks|template)="):
        config_of(run, Named())
    data = config_of(run, named)
    assert data.tasks == (named.tasks or ("arithmetic",))
    assert data.template == named.template
