"""Runs on the Hugging Face hub: `run.push_to_hub("owner/name")` and `open_run("hf://owner/name")`.

A run is uploaded as a data set: its public copy (`store.publish`), which is a run directory, and a card that declares
every table for `datasets`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loopscope import __version__
from loopscope.errors import LoopscopeError, answers_command_line, command_line_words, text
from loopscope.run import Run
from loopscope.store.run import StoredRun
from loopscope.store.verification import verify, write_public_copy

HUB = "hf://"
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_FIGURE = "figure.png"
_DOTS = 150
"""Per inch of the figure."""


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run directory, or a run on the hub, and check every hash, row and identifier of it.

    Args:
        path: a folder, `hf://owner/name` or `hf://owner/name@revision`. A run on the hub is downloaded into the cache
            of `huggingface_hub`; `HF_TOKEN`, `HF_HOME` and `HF_HUB_OFFLINE` act as everywhere.

    Raises:
        LoopscopeError: there is no such run, it cannot be downloaded, or it is damaged.
    """
    where = text("path", path)
    run = Run(_downloaded(where.removeprefix(HUB).removeprefix("datasets/")) if where.startswith(HUB) else where)
    wrong = [finding for finding in verify(run).findings if finding.kind not in ("missing", "leftover")]
    if wrong:
        raise LoopscopeError(f"{where} is damaged: {wrong[0].where}: {wrong[0].message}; take another copy of it")
    return run


def _downloaded(name: str) -> Path:
    from huggingface_hub import snapshot_download

    name, _, revision = name.partition("@")
    _check(name)
    with _clear_hub_errors(f"open {HUB}{name}"):
        return Path(snapshot_download(name, repo_type="dataset", revision=revision or None))


def push_to_hub(run: StoredRun, repository: str, private: bool = True) -> str:
    """Upload a run as a data set; the run's own files stay as they are. Gives the address of the data set.

    Raises:
        LoopscopeError: the run is unfinished or damaged, the repository holds something else or is public and the run
            is not meant to be, or the hub refuses.
    """
    from huggingface_hub import HfApi

    _check(repository)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / repository.partition("/")[2]
        write_hub_folder(run, folder, repository)
        with _clear_hub_errors(f"push to {repository}"):
            api = HfApi(library_name="loopscope", library_version=__version__)
            address = api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
            there = api.dataset_info(repository)
            names = {file.rfilename for file in there.siblings or ()}
        if private and not there.private:
            public = "--public" if answers_command_line() else "private=False"
            raise LoopscopeError(f"{repository} is public: choose another name, or publish the run with {public}")
        if "manifest.json" not in names and names - {".gitattributes", "README.md"}:
            raise LoopscopeError(f"{repository} holds something that is not a run: choose another name")
        with _clear_hub_errors(f"push to {repository}"):
            # In one commit, with the files of an earlier run removed.
            api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                repo_type="dataset",
                commit_message="A run of loopscope",
                delete_patterns="*",
            )
    return str(address)


def write_hub_folder(run: StoredRun, folder: Path, repository: str) -> None:
    """Write what is uploaded: the public copy of the run, its card and, with matplotlib, a figure."""
    copy = Run(write_public_copy(run, folder).path)
    picture = _draw(copy)
    if picture is not None:
        (folder / _FIGURE).write_bytes(picture[0])
    card = _card(copy, repository, None if picture is None else picture[1])
    (folder / "README.md").write_text(card, encoding="utf-8")


def _draw(run: Run) -> tuple[bytes, str] | None:
    """The first figure that the run fills, and its caption."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    for name in ("direction-progress", "depth-curves"):
        figure = run.figure(name)
        if figure.shown:
            return figure.drawn("png", _DOTS), figure.caption
    return None


def _card(run: Run, repository: str, caption: str | None) -> str:
    import yaml

    from loopscope.report.provenance import provenance

    manifest, tables = run.manifest, [table.name for table in run.manifest.tables()]
    tasks = ", ".join(dict.fromkeys(task.name for task in manifest.tasks))
    header: dict[str, Any] = {
        "pretty_name": f"{manifest.model.name} on {tasks}, measured by loopscope",
        "tags": ["loopscope"],
        "configs": [
            {"config_name": name, "data_files": [{"split": "train", "path": f"{name}/*.parquet"}]}
            | ({"default": True} if name == "questions" else {})
            for name in tables
        ],
    }
    with command_line_words():
        said = provenance(run)
        shown = [run.table(name) for name in ("mechanism", "depth-coverage")]
    measured = "\n".join(f"| {entry['term']} | {_cell(entry['text'])} |" for entry in said)
    parts = [
        f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---",
        f"# {header['pretty_name']}",
        f"What each loop of {manifest.model.name} does to the support of the references of {tasks}: a run of loopscope "
        f"{manifest.loopscope_version}, under the protocol `{manifest.protocol}`. Every table is a configuration: "
        f"{', '.join(f'`{name}`' for name in tables)}. The texts in `examples` are those of the tasks, under their "
        "licences.",
        "## Load it",
        f'```python\nimport loopscope as ls\n\nrun = ls.open_run("{HUB}{repository}")  # downloads, checks every hash\n'
        'run.table("mechanism")\n```',
        "```python\nfrom datasets import load_dataset\n\n"
        f'questions = load_dataset("{repository}", "questions", split="train")\n```',
        *([f"## Figure\n\n![{_cell(caption)}]({_FIGURE})\n\n{caption}"] if caption is not None else []),
        "## Results",
        *(result.to_markdown().strip() for result in shown if result.rows),
        f"## How it was measured\n\n| | |\n|---|---|\n{measured}",
    ]
    return "\n\n".join(parts) + "\n"


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")


def _check(repository: str) -> None:
    if not isinstance(repository, str) or not _REPOSITORY.fullmatch(repository):
        raise LoopscopeError(f"{repository!r} is not the name of a data set on the hub: give owner/name")


@contextmanager
def _clear_hub_errors(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever the network, the hub or its cache did wrong; no code of ours runs here
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise LoopscopeError(f"cannot {what} ({reason}); check the name, the network and `hf auth login`") from error
