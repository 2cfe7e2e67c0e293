"""README.md and docs/*.md, tried as a reader would: block by block in order, each document in an empty folder.

What needs a download or a GPU runs with the embedded models instead (`STAND_INS`), and what cannot run here at all has
its flags read by the real command line (`ONLY_READ`, with the reason). Numbers of questions are made small, different
ones differently, so that two blocks that contradict each other still do.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from loopscope.cli.app import _group, exit_code
from loopscope.models.registry import EMBEDDED
from loopscope.tasks import load_task
from loopscope.tasks.template import parse_template

ROOT = Path(__file__).resolve().parents[1]
_GROUP = _group()
_CONTEXT = click.Context(_GROUP)
COMMANDS = {name: _GROUP.get_command(_CONTEXT, name) for name in _GROUP.list_commands(_CONTEXT)}
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
STAND_INS = {
    "ByteDance/Ouro-1.4B": "toy-ouro",
    "ouro-1.4b": "toy-ouro",
    "huginn-0125": "toy-huginn",
    "gsm8k,math500,hellaswag": "arithmetic",
    "--tasks hellaswag": "--tasks arithmetic-mc",
    "--tasks stories --transitions 4 --limit": "--tasks arithmetic --transitions 4 --limit",  # answers of a few tokens
    "--device cuda": "--device cpu",
    'device="cuda"': 'device="cpu"',
    'wandb.init(project="loops")': 'wandb.init(mode="disabled")',
}
ONLY_READ = {
    r"--engine ray": "starts a cluster; tests/measuring/test_ray_engine.py measures with it",
    r"loopscope demo": "takes a minute; tests/cli/test_demo.py runs it",
    r"loopscope reproduce": "needs the benchmarks and takes minutes; tests/reproduction runs all of it",
    r"--apply-chat-template": "the embedded models have no chat template; tests/tasks/test_prompting.py",
    r"lm_eval:": "needs that program's data; tests/tasks/test_lm_eval_requests.py",
    r"--revision step": "needs the hub; tests/models/test_load.py measures revisions from one",
}
OTHER_PROGRAMS = {
    "make": "its targets are looked up",
    "pip": "installs",
    "ray": "starts a cluster",
    "source": "activates an environment",
    "python": "the script or module is looked up",
    "python3": "makes the environment",
}


@dataclass(frozen=True)
class Block:
    """Code of a document."""

    language: str
    text: str
    line: int


def blocks(document: Path) -> Iterator[Block]:
    """The fenced blocks, and the indented ones, which are shell."""
    text = document.read_text(encoding="utf-8")
    pattern = re.compile(r"^```(\w*)\n(.*?)^```$|((?:^    [^\n]+\n)+)", re.M | re.S)
    for found in pattern.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found[3] is None:
            yield Block(found[1] or "sh", found[2], line)
        else:
            yield Block("sh", re.sub(r"^    ", "", found[3], flags=re.M), line)


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell block, without comments and prompts."""
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"^\w+\$\s+", "", line)
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words = words[1:]
        if words:
            yield words


class Smaller:
    """Numbers of questions become 2, 3, … in the order in which a document first has them."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        def small(found: re.Match[str]) -> str:
            return found[1] + str(self.seen.setdefault(found[2], 2 + len(self.seen)))

        return re.sub(r"(limit[= ])(\d+)", small, text)


def stand_in(text: str) -> str:
    for name, other in STAND_INS.items():
        text = text.replace(name, other)
    return text


def is_shell(block: Block) -> bool:
    """Fenced text without a language may also be a listing."""
    first = rf"^(\w+\$ +)?([A-Z_]+=\S* +)?({'|'.join(('loopscope', *OTHER_PROGRAMS))}) "
    return block.language == "sh" and re.search(first, block.text, re.M) is not None


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_document(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    if "'runs/ckpt/step-*'" in document.read_text(encoding="utf-8"):  # a training of the reader's own
        for step in (1000, 2000):
            shutil.copytree(EMBEDDED / "toy-ouro", tmp_path / "runs" / "ckpt" / f"step-{step}")
    smaller = Smaller()
    names: dict[str, Any] = {}
    for block in blocks(document):
        where = f"{document.name}, line {block.line}"
        if is_shell(block):
            for words in commands(block.text):
                run_words(words, smaller, where)
        elif block.language == "python":
            code = smaller(stand_in(block.text))
            if saved := re.match(r"# (\w+\.py)\n", code):
                (tmp_path / saved[1]).write_text(code)
            with redirect_stdout(io.StringIO()):
                exec(compile("\n" * block.line + code, str(document), "exec"), names)
        elif block.language == "toml":
            written = tomllib.loads(block.text)
            if "project" not in written:  # entry points are those of tests/models/test_user_models.py
                parse_template(written, where)
        elif block.language == "json":
            path = tmp_path / "my.jsonl"
            path.write_text(block.text)
            assert len(load_task(str(path))) == len(block.text.strip().splitlines()), where
        elif block.language == "sql":
            run_sql(block.text)
        elif block.language == "yaml":  # the steps of a workflow; their commands stand in the document's shell blocks
            assert all(isinstance(step, dict) for step in yaml.safe_load(block.text)), where
        else:
            assert block.language in ("", "sh", "text"), f"{where}: nobody tries {block.language}"


def run_words(words: list[str], smaller: Smaller, where: str) -> None:
    """One command of a document."""
    program, *arguments = words
    if program != "loopscope":
        assert program in OTHER_PROGRAMS, f"{where}: nobody tries {program}"
        look_up(program, arguments, where)
        return
    line = " ".join(words)
    read_flags(arguments, where)
    if any(re.search(pattern, line) for pattern in ONLY_READ):
        return
    given = shlex.split(smaller(stand_in(shlex.join(arguments))))
    if given[0] == "measure" and "--limit" not in given:
        # The published commands are for whole benchmarks.
        assert stand_in(line) != line, f"{where}: a whole generated task is 5,000 questions; give a --limit"
        given += ["--limit", "2"]
    out = io.StringIO()
    with redirect_stdout(out):
        code = exit_code(given)
    assert code == 0, f"{where}: {shlex.join(given)}"
    assert out.getvalue().strip(), f"{where}: says nothing"


def read_flags(arguments: list[str], where: str) -> None:
    """The flags as the command line reads them; nothing is called."""
    whole = ["--model", "toy-ouro", "--tasks", "arithmetic", "--transitions", "4", "--output", "runs/x"]
    given = [word for argument in arguments for word in (whole if argument == "…" else [argument])]
    name, *rest = given
    assert name in COMMANDS, f"{where}: there is no command {name}"
    COMMANDS[name].make_context(name, rest)


def look_up(program: str, arguments: list[str], where: str) -> None:
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
        assert set(arguments) <= set(targets), where
    elif program == "python" and arguments[:2] != ["-m", "venv"]:
        module = arguments[1].replace(".", "/") if arguments[0] == "-m" else ""
        named = [f"{module}.py", f"{module}/__main__.py"] if module else [arguments[0]]
        assert any((ROOT / place / name).exists() for place in ("", "src") for name in named), f"{where}: {arguments}"


def run_sql(text: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.sql(text).fetchall()


def test_prose_names_commands_and_flags_that_exist() -> None:
    """Flags in running text, `--like-this`, are flags of some command or script."""
    params = [param for command in (_GROUP, *COMMANDS.values()) for param in command.params]
    known = {"--plugins", "--help", "--version"}  # lm-eval's, everybody's
    known |= {option for param in params for option in (*param.opts, *param.secondary_opts)}
    scripts = [
        *ROOT.glob("docs/figures/*.py"),
        *ROOT.glob("examples/*.py"),
        *ROOT.glob("research/*/*.py"),
        *ROOT.glob("benchmarks/*.py"),
    ]
    known |= {flag for script in scripts for flag in re.findall(r'"(--[a-z-]+)"', script.read_text(encoding="utf-8"))}
    for document in DOCUMENTS:
        # Without fenced blocks: they are run or read above.
        prose = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
        for quoted in re.findall(r"`([^`\n]*)`", prose):
            if quoted.startswith(("pip ", "hf ", "ray ", "CUDA", "OMP", "torchrun ", "lm_eval ")):
                continue
            unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", quoted)) - known
            assert not unknown, f"{document.name}: `{quoted}` names {unknown}"


def test_every_link_leads_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8")):
            assert "://" in target or (document.parent / target).exists(), f"{document.name}: {target}"
