"""`load_model`: from what the user wrote to a model that is ready to be measured, with a card that says what it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loopscope.errors import LARGEST_SEED, LoopscopeError, optional_text, setting, shown, switch, text, whole
from loopscope.models.checkpoint.config import read_config
from loopscope.models.checkpoint.hub import HubRepository
from loopscope.models.checkpoint.random_weights import fill_randomly
from loopscope.models.checkpoint.safetensors import INDEX, WEIGHTS, index_shards, open_checkpoint, read_header
from loopscope.models.checkpoint.weights import load_tensors, main_dtype, match_tensors
from loopscope.models.choices import is_choice
from loopscope.models.families.detect import build_model, check_architecture, detect_family
from loopscope.models.in_memory import ModelSpec, spec_of, taken
from loopscope.models.published import RUN_DTYPE
from loopscope.models.registry import Source, parse_spec
from loopscope.models.user_models import built, load_factory, model_arguments, parsed_value

if TYPE_CHECKING:
    from loopscope.models.base import LoopedModule
    from loopscope.models.protocol import LoopedModel


DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
_TYPES = ("cpu", "cuda", "mps")
_ABBREVIATIONS = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "fp64": "float64"}


@dataclass(frozen=True)
class ModelCard:
    """The provenance of a loaded model.

    Attributes:
        spec: what the user wrote.
        name: what tables call it.
        family: "ouro", "huginn", …
        kind: hub, folder, embedded, random, entry point, code or object.
        location: the hub name, the folder, the entry point or where the code is.
        revision: the full commit hash, for a hub model.
        stored_dtype: the dtype of most of the checkpoint's bytes; None without a checkpoint.
        dtype: the dtype it was loaded in.
        device: where it was loaded to.
        parameters: unique parameters.
        trained_depth: the number of loops it was trained for.
        boundary: where the state is taken.
        trained_clock: steps after which a step that knows its time leaves what it was trained for; else None.
        random: whether the weights are random.
        seed: the seed of random weights.
        files: what was read.
        args: what a factory of the user's own was called with, or what was chosen of a family.
        checkpoint: specification and revision of the checkpoint that it was loaded from, also when it is measured as an
            object later; None for a model of the user's own.
    """

    spec: str
    name: str
    family: str
    kind: str
    location: str
    revision: str | None
    stored_dtype: str | None
    dtype: str
    device: str
    parameters: int
    trained_depth: int
    boundary: str
    trained_clock: int | None = None
    random: bool = False
    seed: int | None = None
    files: tuple[Path, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: tuple[str, str | None] | None = None

    @property
    def is_own(self) -> bool:
        """Whether the model's code is the user's own."""
        return self.kind in ("entry point", "code", "object")

    @cached_property
    def sha256(self) -> dict[str, str]:
        """The hash of every file read, by file name; computed when first asked for, since it reads them all."""
        return {path.name: _hash(path) for path in self.files}

    def as_dict(self, *, hashes: bool = True) -> dict[str, Any]:
        """Plain values for a manifest, with the files' sizes and, unless declined, their hashes."""
        fields = {
            name: value for name, value in vars(self).items() if name not in ("files", "sha256", "args", "checkpoint")
        }
        fields |= {"args": dict(self.args)} if self.args else {}
        files = [{"name": path.name, "bytes": path.stat().st_size} for path in self.files]
        if hashes:
            for entry in files:
                entry["sha256"] = self.sha256[str(entry["name"])]
        return fields | {"files": files}


def card_of(model: LoopedModel) -> ModelCard:
    """The provenance of a model that `load_model` returned."""
    card = getattr(model, "card", None)
    if not isinstance(card, ModelCard):
        raise LoopscopeError(f"{model.name} has no card: load it with load_model, or set model.card")
    return card


def load_model(
    spec: ModelSpec,
    *,
    model_args: Mapping[str, Any] | str | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    random_weights: bool = False,
    seed: int = 0,
    offline: bool | None = None,
    allow_code: bool = True,
) -> LoopedModel:
    """The model that a specification names, in evaluation mode on its device.

    Args:
        spec: a published name, a hub name (`org/name@revision`), a folder, `toy-ouro`, `loop:MODEL:10-20`, the name of
            an entry point, or code of one's own, `mine.py:build` or `package.module:build`; see
            `loopscope.models.registry`. A function that makes a model is called as such code is; a model in memory is
            moved to its device and otherwise left as it is.
        model_args: what code of one's own is called with, as a mapping or as text, "ckpt=step900,cores=2"; for
            families that have choices, what is chosen.
        device: "cpu", "cuda", "cuda:1", "mps", or "auto".
        dtype: the dtype of the weights and of embed and step; None is bfloat16 for a published checkpoint, the
            paper's protocol, and the checkpoint's own for any other.
        revision: a branch, tag or commit of a hub model, instead of the pinned one.
        random_weights: build the model at its size without its weights; it is marked as random.
        seed: what random weights are drawn from.
        offline: True uses the hub's cache only; None does what `HF_HUB_OFFLINE` says.
        allow_code: False refuses specifications that name code, as one must be that comes from a run directory.

    Raises:
        LoopscopeError: one line for whatever is wrong; nothing is half loaded.
    """
    place, args = find_device(device), model_arguments(model_args)
    switch("random_weights", random_weights)
    if not isinstance(spec, str | os.PathLike):
        if random_weights or revision is not None:
            raise LoopscopeError("random_weights= and revision= are for checkpoints: a model in memory has neither")
        model = taken(spec, args, place, None if dtype is None else find_dtype(dtype))
        named = spec_of(spec)
        return _with_card(model, named, Source(named, "code", named), kind="object", args=args)
    spec = text("spec", spec)
    source = parse_spec(spec, optional_text("revision", revision))
    if source.is_code and not allow_code:
        raise LoopscopeError(f"{shown(spec)} is code, which runs only where you name it: {setting('model', spec)}")
    if args and not source.is_code:
        spec, source = _with_args(spec, source, args)
    if dtype is None and source.published is not None:
        dtype = RUN_DTYPE
    wanted = None if dtype is None else find_dtype(dtype)
    if source.is_code:
        if random_weights:
            raise LoopscopeError(f"{spec} is a model of your own: random weights are up to its factory")
        called = {name: parsed_value(value) for name, value in source.chosen.items()} | args
        model = built(load_factory(source.kind, source.location), source.location, called, place, wanted)
        return _with_card(model, spec, source, kind=source.kind, args=args)
    if random_weights:
        whole("seed", seed, -LARGEST_SEED, LARGEST_SEED)
        return _load_random(spec, source, place, wanted, seed, offline)
    return _load_checkpoint(spec, source, place, wanted, offline)


def _with_args(spec: str, source: Source, args: Mapping[str, Any]) -> tuple[str, Source]:
    """The specification with what was chosen by `model_args`, and its source."""
    for name, value in args.items():
        if name in source.chosen:
            raise LoopscopeError(f"{shown(spec)} and {setting('model_args')} both give {shown(name)}: give it once")
        if not is_choice(f"{name}={value}"):
            raise LoopscopeError(f"{setting('model_args')}: {source.name} takes words and numbers, not {shown(value)}")
    more = ",".join(f"{name}={value}" for name, value in args.items())
    join = "," if source.chosen else ":"
    chosen = {**source.chosen, **{name: str(value) for name, value in args.items()}}
    return f"{spec}{join}{more}", replace(source, name=f"{source.name}{join}{more}", chosen=chosen)


def _load_checkpoint(
    spec: str, source: Source, device: torch.device, dtype: torch.dtype | None, offline: bool | None
) -> LoopedModel:
    repository = None if source.folder else _repository(source, offline)
    folder = source.folder or _fetch(source, repository)
    with _naming(source.name if source.kind == "embedded" else folder):
        checkpoint = open_checkpoint(folder)
        family = _family(source, checkpoint.config, list(checkpoint.tensors))
        model = build_model(family, checkpoint.config, source.span, checkpoint.tensors, source.chosen)
        matched = match_tensors(model, checkpoint.tensors)
        stored = main_dtype(matched.values())
        load_tensors(model, matched, device, dtype or stored)
    model.prepare()
    return _with_card(
        _named(model, source.name, random=False),
        spec,
        source,
        kind=source.kind,
        revision=repository.commit if repository else None,
        stored_dtype=_dtype_name(stored),
        files=checkpoint.files,
    )


def _fetch(source: Source, repository: HubRepository | None) -> Path:
    """The folder of a hub model; what cannot be run is refused before gigabytes travel."""
    assert repository is not None
    folder = repository.fetch_description()
    with _naming(repository.repo_id):
        config = read_config(folder)
        if source.span is None:
            check_architecture(config)
        else:
            build_model("loop", config, source.span)
    return repository.fetch_weights()


def _load_random(
    spec: str, source: Source, device: torch.device, dtype: torch.dtype | None, seed: int, offline: bool | None
) -> LoopedModel:
    revision = names = None
    config: Mapping[str, Any]
    if source.published is not None:
        config = source.published.config
        if not config:
            raise LoopscopeError(f"the sizes of {source.name} are not known here: load it without random weights")
        family = _family(source, config, None)
    else:
        repository = None if source.folder else _repository(source, offline)
        folder = source.folder or (repository.fetch_description() if repository else Path())
        revision = repository.commit if repository else None
        with _naming(repository.repo_id if repository else folder):
            config, names = read_config(folder), _stored_names(folder)
            family = _family(source, config, names)
    with _naming(source.location):
        model = build_model(family, config, source.span, names, source.chosen)
    fill_randomly(model, device, dtype or _stated_dtype(config), seed)
    model.prepare()
    named = _named(model, f"{source.name} (random weights)", random=True)
    return _with_card(named, spec, source, kind="random", revision=revision, random=True, seed=seed)


def _repository(source: Source, offline: bool | None) -> HubRepository:
    return HubRepository(source.location, source.revision, offline=offline)


@contextmanager
def _naming(what: Path | str) -> Iterator[None]:
    """Puts the checkpoint's name in front of complaints that do not have it yet."""
    try:
        yield
    except LoopscopeError as error:
        if str(what) in str(error):
            raise
        raise LoopscopeError(f"{what}: {error}") from None


def _family(source: Source, config: Mapping[str, Any], names: list[str] | None) -> str:
    if source.span is not None:
        return "loop"
    if names is None and source.published is not None:
        return source.published.family
    return detect_family(config, names)


def _stored_names(folder: Path) -> list[str] | None:
    """The tensors a folder's index or header names; None where only the configuration is there."""
    single = folder / WEIGHTS
    return list(read_header(single)) if single.is_file() else _index_names(folder)


def _index_names(folder: Path) -> list[str] | None:
    return list(index_shards(folder / INDEX)) if (folder / INDEX).is_file() else None


def _named(model: LoopedModule, name: str, *, random: bool) -> LoopedModule:
    model.name = name
    model.is_random = random  # type: ignore[assignment]
    return model


def _with_card(model: LoopedModel, spec: str, source: Source, **fields: Any) -> LoopedModel:
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    before = getattr(model, "card", None)
    checkpoint = before.checkpoint if isinstance(before, ModelCard) else None
    card = ModelCard(
        spec=spec,
        name=model.name,
        family=model.family,
        location=source.location,
        dtype=_dtype_name(model.dtype),
        device=str(model.device),
        parameters=sum(parameter.numel() for parameter in parameters),
        trained_depth=model.trained_depth,
        boundary=model.boundary,
        trained_clock=getattr(model, "trained_clock", None),
        checkpoint=checkpoint if source.is_code else (spec, source.revision),
        **{"revision": None, "stored_dtype": None} | fields,
    )
    model.card = card  # type: ignore[attr-defined]
    return model


def find_device(device: str | torch.device) -> torch.device:
    """The device of a name; "auto" is the first accelerator, else the CPU.

    Raises:
        LoopscopeError: if there is no such device on this machine.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else _apple() or "cpu")
    unknown = LoopscopeError(f"there is no device {shown(str(device))} for models: choose cpu, cuda, cuda:1, … or auto")
    # torch knows devices that hold no numbers (meta) or that no model was ever run on.
    if str(device).partition(":")[0] not in _TYPES:
        raise unknown
    try:
        found = torch.device(device)
    except RuntimeError:
        raise unknown from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise LoopscopeError(f"{found} is asked for but this machine has {count} CUDA devices: choose cpu or auto")
    if found.type == "mps" and _apple() is None:
        raise LoopscopeError("mps is asked for but this machine has none: choose cpu or auto")
    return found


def _apple() -> str | None:
    return "mps" if torch.backends.mps.is_available() else None


def find_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The floating-point dtype of a name.

    >>> find_dtype("bf16")
    torch.bfloat16
    """
    name = str(dtype).removeprefix("torch.").lower()
    try:
        return DTYPES[_ABBREVIATIONS.get(name, name)]
    except KeyError:
        raise LoopscopeError(f"{shown(name)} is no dtype for weights: choose one of {', '.join(DTYPES)}") from None


def _stated_dtype(config: Mapping[str, Any]) -> torch.dtype:
    stated = config.get("dtype") or config.get("torch_dtype")
    return find_dtype(stated) if isinstance(stated, str) else torch.float32


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
