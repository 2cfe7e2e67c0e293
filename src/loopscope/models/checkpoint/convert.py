"""`loopscope convert SOURCE FOLDER`: weights in pickled files (.bin, .pt, …) to a safetensors checkpoint.

Some models are published as pickles, which can run code when they are opened. Nothing that measures opens one. This
command hands each file to a process of its own (`unpickle`), writes what it returns beside config.json and the
tokenizer's files into a folder that appears whole or not at all, and checks the headers as any other checkpoint's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loopscope.errors import LoopscopeError, shown, text
from loopscope.models.checkpoint import unpickle
from loopscope.models.checkpoint.config import CONFIG, TOKENIZER, read_config, read_json_object
from loopscope.models.checkpoint.hub import PICKLED_INDEX, PICKLED_WEIGHTS, TOKENIZER_EXTRAS, HubRepository
from loopscope.models.checkpoint.safetensors import INDEX, PICKLES, WEIGHTS, open_checkpoint
from loopscope.models.registry import parse_spec


@dataclass(frozen=True)
class Converted:
    """What a conversion wrote.

    Attributes:
        folder: the new checkpoint.
        tensors: how many there are.
        bytes: of all their values.
        files: the pickled files that were read.
        left_out: what lay beside the weights of a training checkpoint.
    """

    folder: Path
    tensors: int
    bytes: int
    files: tuple[str, ...]
    left_out: tuple[str, ...]


def convert(source: str | Path, folder: str | Path, *, offline: bool | None = None) -> Converted:
    """Writes the checkpoint that `source` holds as safetensors into a new folder.

    Args:
        source: a folder with config.json and pickled weights, one such file beside its config.json, or the name of a
            hub model, whose tokenizer then comes along.
        folder: must not exist yet, or be empty.
        offline: as in `load_model`.

    Raises:
        LoopscopeError: one line for whatever is wrong; no folder is left behind.
    """
    target = Path(text("folder", folder)).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise LoopscopeError(f"{target} is there already: give a folder that does not exist yet")
    held, files, tokenizer = _find(text("source", source), offline)
    read_config(held)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as made:
        new = Path(made) / target.name
        new.mkdir()
        left_out = _write_weights(files, new)
        for name in (CONFIG, TOKENIZER, "tokenizer.model", *TOKENIZER_EXTRAS):
            place = held if name == CONFIG or tokenizer is None else tokenizer
            if (place / name).is_file():
                shutil.copyfile(place / name, new / name)
        for weights in new.glob("*.safetensors"):
            shutil.copymode(new / CONFIG, weights)  # safetensors leaves them to their owner alone
        entries = open_checkpoint(new).tensors.values()
        if target.is_dir():
            target.rmdir()
        new.rename(target)
    return Converted(
        target, len(entries), sum(entry.nbytes for entry in entries), tuple(path.name for path in files), left_out
    )


def _find(source: str, offline: bool | None) -> tuple[Path, list[Path], Path | None]:
    """The folder of config.json, the pickled files, and the folder of the tokenizer if that is another one."""
    path = Path(source).expanduser()
    if path.is_file():
        return path.parent, [path], None
    named = parse_spec(source)
    if named.folder is not None:
        return named.folder, _pickled(named.folder), None
    if named.kind != "hub":
        raise LoopscopeError(f"{shown(source)} is a model of your own: give a folder, a file or a hub name")
    repository = HubRepository(named.location, named.revision, offline=offline)
    folder = repository.fetch_pickled_weights()
    elsewhere = None if named.published is None else named.published.tokenizer_repo
    tokenizer = HubRepository(elsewhere, offline=offline) if elsewhere else repository
    return folder, _pickled(folder), tokenizer.fetch_tokenizer(optional=not elsewhere)


def _pickled(folder: Path) -> list[Path]:
    """The pickled files of a folder: those of an index, the usual one, or the only one there is."""
    index = folder / PICKLED_INDEX
    if index.is_file():
        named = read_json_object(index).get("weight_map")
        names = sorted({str(name) for name in named.values()}) if isinstance(named, dict) else []
        if not names or any(Path(name).name != name or not (folder / name).is_file() for name in names):
            raise LoopscopeError(f"{index} names files that are not in its folder: download them too")
        return [folder / name for name in names]
    if (folder / PICKLED_WEIGHTS).is_file():
        return [folder / PICKLED_WEIGHTS]
    found = sorted(path for pattern in PICKLES for path in folder.glob(pattern))
    if len(found) == 1:
        return found
    if not found:
        why = " and is safetensors already" if (folder / WEIGHTS).is_file() or (folder / INDEX).is_file() else ""
        raise LoopscopeError(f"{folder} holds no pickled weights{why}: nothing to convert")
    raise LoopscopeError(f"{folder} holds {len(found)} pickled files ({found[0].name}, …): give the one that is meant")


def _write_weights(files: list[Path], folder: Path) -> tuple[str, ...]:
    """One safetensors file for each pickled one, with an index where there are several."""
    count, left_out = len(files), set()
    weight_map: dict[str, str] = {}
    for number, path in enumerate(files, start=1):
        name = WEIGHTS if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
        command = [sys.executable, "-P", unpickle.__file__, str(path.absolute()), str(folder / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == unpickle.REFUSED:
            raise LoopscopeError(f"{path} is refused: {' '.join(done.stderr.split())}")
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise LoopscopeError(f"{path} could not be converted: {last[0][:300]}")
        report = json.loads(done.stdout)
        weight_map |= dict.fromkeys(report["tensors"], name)
        left_out |= set(report["left_out"])
    if count > 1:
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return tuple(sorted(left_out))
