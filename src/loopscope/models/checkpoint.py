"""A checkpoint: config.json and safetensors files, in a folder or on the Hugging Face hub at one commit.

`huggingface_hub` does the transfer and `safetensors` checks headers against the files. Configuration and index come
first, then the weights that they name: a model that loopscope cannot run is refused before gigabytes travel. Nothing
but JSON and safetensors is fetched or read: pickles can run code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

from loopscope.errors import LoopscopeError, shown
from loopscope.limits import check_regular, read_text

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
LARGEST_JSON = 100_000_000
"""Bytes of a configuration or an index; the largest published ones have a tenth."""
MOST_LOOPS = 1_000_000
"""Trained depth."""
DESCRIPTION = (CONFIG, INDEX)
_SHARD = re.compile(r"\w[\w.-]{0,240}\.safetensors", re.ASCII)
TOKENIZER_FILES = (
    *(CONFIG, TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
    *("tokenizer.model", "spiece.model", "*.tiktoken", "vocab.json", "merges.txt", "tokenizer/*"),
)


class TensorEntry(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
        name: what the model calls it.
        dtype: as safetensors writes it: "BF16".
        shape: its sizes.
        path: the file that holds it.
        stored: its name in the file.
        first_row: where it begins, if it is a block of the stored tensor's rows.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    stored: str
    first_row: int | None = None

    def row_blocks(self, names: Sequence[str]) -> list[TensorEntry]:
        """Equal blocks of its rows, each a tensor of its own."""
        size = self.shape[0] // len(names)
        if size * len(names) != self.shape[0]:
            raise LoopscopeError(
                f"{self.path} stores {shown(self.name)} as {list(self.shape)}, not in {len(names)} blocks"
            )
        shape = (size, *self.shape[1:])
        return [self._replace(name=name, shape=shape, first_row=index * size) for index, name in enumerate(names)]

    def read(self) -> Tensor:
        """Its values; memory of the file, so copy them before the file may change."""
        with _opened(self.path, "pt") as file:
            if self.first_row is None:
                return file.get_tensor(self.stored)  # type: ignore[no-any-return]
            return file.get_slice(self.stored)[self.first_row : self.first_row + self.shape[0]]  # type: ignore[no-any-return]


class Checkpoint(NamedTuple):
    """The contents of a folder: configuration, every tensor with its place on disk, the files of both."""

    config: dict[str, Any]
    tensors: dict[str, TensorEntry]
    files: tuple[Path, ...]


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in a folder, all headers checked; torch is not imported.

    Raises:
        LoopscopeError: if anything is missing, damaged or not safetensors.
    """
    config = read_config(folder)
    names = [WEIGHTS]
    if not (folder / WEIGHTS).exists():
        if not (folder / INDEX).is_file():
            pickles = sorted(path.name for path in folder.iterdir() if path.name.endswith(PICKLES))
            raise no_weights(str(folder), *pickles[:1])
        names = sorted(set(index_shards(folder / INDEX).values()))
    tensors: dict[str, TensorEntry] = {}
    for name in names:
        tensors |= read_header(folder / name)
    return Checkpoint(config, tensors, tuple(folder / name for name in (CONFIG, *names)))


def no_weights(where: str, pickled: str = "pytorch_model.bin") -> LoopscopeError:
    """The error for a checkpoint without safetensors; two lines of torch are the remedy for a pickled one."""
    return LoopscopeError(
        f"{where} has no {WEIGHTS}; pickled weights are never read, because they can run code: save them as safetensors"
        f" in that folder: weights = torch.load({pickled!r}, weights_only=True); "
        f"safetensors.torch.save_file({{name: w.clone() for name, w in weights.items()}}, {WEIGHTS!r})"
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a checkpoint folder."""
    if not (folder / CONFIG).exists():
        raise LoopscopeError(f"{folder} has no {CONFIG}: it is not the folder of a checkpoint")
    return read_json_object(folder / CONFIG)


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file that must hold an object."""
    try:
        value = json.loads(read_text(path, "checkpoint file", LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise LoopscopeError(f"{path} is not valid JSON ({reason}); download or export it again") from None
    if not isinstance(value, dict):
        raise LoopscopeError(f"{path} does not hold a JSON object; download or export it again")
    return value


def stored_names(folder: Path) -> list[str] | None:
    """The tensors a folder's header or index names; None where only the configuration is there."""
    if (folder / WEIGHTS).is_file():
        return list(read_header(folder / WEIGHTS))
    return list(index_shards(folder / INDEX)) if (folder / INDEX).is_file() else None


def index_shards(index: Path) -> dict[str, str]:
    """Tensor name to shard file name, as the index of a sharded checkpoint has it; every name stays in the folder."""
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoopscopeError(f"{index} has no weight_map; download or export it again")
    for shard in weight_map.values():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise LoopscopeError(f"{index} names the shard {shown(shard)}, which is not a file in its folder; refused")
    return weight_map


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a safetensors file by name."""
    with _opened(path, "np") as file:
        pieces = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {
            name: TensorEntry(name, piece.get_dtype(), tuple(piece.get_shape()), path, name)
            for name, piece in pieces.items()
        }


@contextmanager
def _opened(path: Path, framework: str) -> Iterator[Any]:
    """A safetensors file; whatever is wrong with it is one line."""
    from safetensors import SafetensorError, safe_open

    check_regular(path, "checkpoint file")
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:160]
        raise LoopscopeError(
            f"{path} cannot be read as safetensors ({reason}); download or export it again, or run `git lfs pull` in a"
            " cloned folder"
        ) from None


def fetch_weights(repo_id: str, description: Path, *, offline: bool | None) -> None:
    """The weights that belong to a description, into its folder."""
    index = description / INDEX
    names = sorted(set(index_shards(index).values())) if index.is_file() else [WEIGHTS]
    if all((description / name).is_file() for name in names):
        return
    fetch(repo_id, description.name, names, offline=offline)
    if not (description / names[0]).is_file():
        raise no_weights(repo_id)


def fetch(repo_id: str, revision: str | None, patterns: Sequence[str], *, offline: bool | None) -> Path:
    """The folder of a commit in the hub's cache, with the files of some patterns as far as the repository has them.

    `DESCRIPTION` is what is looked at before any weights travel. The folder's name is the commit.
    """
    from huggingface_hub import constants, errors, snapshot_download

    place, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    only_cached = bool(constants.HF_HUB_OFFLINE) if offline is None else offline
    remedies: dict[type[Exception], str] = {
        errors.GatedRepoError: f"it is gated: ask for access at {place}/{repo_id}, then set HF_TOKEN",
        errors.RevisionNotFoundError: f"no revision {revision!r}: give a branch, a tag or a full commit hash",
        errors.RepositoryNotFoundError: "no such model that you may read: check the name, or set HF_TOKEN for a "
        "private one",
        errors.HFValidationError: "not a hub name: give ORGANISATION/NAME or a local folder",
        errors.LocalEntryNotFoundError: f"it is not in the cache at {cache} and the hub is out of reach or switched off"
        " (HF_HUB_OFFLINE): check network and HF_TOKEN, or give a local folder",
    }
    try:
        return Path(
            snapshot_download(repo_id, revision=revision, allow_patterns=list(patterns), local_files_only=only_cached)
        )
    except Exception as error:
        reason = shorten(f"{type(error).__name__}: {error}", 200, placeholder=" …")
        remedy = f"cannot be fetched from {place} to {cache} ({reason}): check network, disk and HF_TOKEN and repeat"
        remedy = next((text for kind, text in remedies.items() if isinstance(error, kind)), remedy)
        raise LoopscopeError(f"{shown(repo_id)} on the hub: {remedy}") from error
