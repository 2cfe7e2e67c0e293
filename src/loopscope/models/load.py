"""`load_model`: from what the user wrote to a model that is ready to be measured, with a card that says what it is.

Options of a checkpoint are `model_args`: `loop="10-20"` (the layers to loop, of a model that is not looped),
`random_weights` and `seed`, and what its family lets one choose (`loopscope models` lists it).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loopscope.errors import LARGEST_SEED, LoopscopeError, setting, shown, switch, text, whole
from loopscope.models.checkpoint.config import read_config
from loopscope.models.checkpoint.hub import HubRepository
from loopscope.models.checkpoint.random_weights import fill_randomly
from loopscope.models.checkpoint.safetensors import INDEX, WEIGHTS, index_shards, open_checkpoint, read_header
from loopscope.models.checkpoint.weights import load_tensors, main_dtype, match_tensors
from loopscope.models.families import build_model, check_architecture, detect_family
from loopscope.models.in_memory import ModelSpec, spec_of, taken
from loopscope.models.published import RUN_DTYPE
from loopscope.models.registry import Source, parse_name
from loopscope.models.user_models import built, load_factory, model_arguments

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
_SPAN = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)


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
        args: the `model_args` that it was made with.
        checkpoint: the name of the checkpoint that it was loaded from, also when it is measured as an object later;
            None for a model of the user's own.
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
    checkpoint: str | None = None

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


@dataclass(frozen=True)
class CheckpointOptions:
    """The `model_args` of a checkpoint.

    Attributes:
        span: first and last layer to loop, of a model that is not looped itself.
        random: whether to draw the weights instead of reading them.
        seed: what random weights are drawn from.
        family: what is chosen of its family.
    """

    span: tuple[int, int] | None
    random: bool
    seed: int
    family: Mapping[str, Any]

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> CheckpointOptions:
        """From `model_args`, checked."""
        rest = dict(args)
        loop = rest.pop("loop", None)
        span = None if loop is None else _SPAN.fullmatch(str(loop))
        if loop is not None and span is None:
            raise LoopscopeError(f"{setting('model_args')}: loop={shown(loop)} is not FIRST-LAST, as in loop=10-20")
        random, seed = switch("random_weights", rest.pop("random_weights", False)), rest.pop("seed", 0)
        whole("seed", seed, -LARGEST_SEED, LARGEST_SEED)
        return cls(None if span is None else (int(span[1]), int(span[2])), random, seed, rest)

    @property
    def chosen(self) -> dict[str, Any]:
        """The family's options, the layers to loop among them."""
        return dict(self.family) if self.span is None else {"loop": f"{self.span[0]}-{self.span[1]}", **self.family}

    def named(self, name: str) -> str:
        """What tables call a model with these options."""
        listed = ",".join(f"{key}={value}" for key, value in self.chosen.items())
        return name + (f":{listed}" if listed else "") + (" (random weights)" if self.random else "")


def load_model(
    spec: ModelSpec,
    *,
    model_args: Mapping[str, Any] | str | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    offline: bool | None = None,
    allow_code: bool = True,
) -> LoopedModel:
    """The model that a name means, in evaluation mode on its device.

    Args:
        spec: a published name, a hub name (`org/name@revision`), a folder, the name of an entry point, or a function
            that makes a model, `mine.py:build` or `package.module:build` (`loopscope.models.registry`). A function is
            called as such code is; a model in memory is moved to its device and otherwise left as it is.
        model_args: what a function is called with, as a mapping or as text, "ckpt=step900,cores=2"; of a checkpoint
            `loop="10-20"`, `random_weights=True`, `seed` and the options of its family.
        device: "cpu", "cuda", "cuda:1", "mps", or "auto".
        dtype: the dtype of the weights and of embed and step; None is bfloat16 for a published checkpoint, the
            paper's protocol, and the checkpoint's own for any other.
        offline: True uses the hub's cache only; None does what `HF_HUB_OFFLINE` says.
        allow_code: False refuses names of code, as one must be that comes from a run directory.

    Raises:
        LoopscopeError: one line for whatever is wrong; nothing is half loaded.
    """
    place, args = find_device(device), model_arguments(model_args)
    wanted = None if dtype is None else find_dtype(dtype)
    if not isinstance(spec, str | os.PathLike):
        model = taken(spec, args, place, wanted)
        named = spec_of(spec)
        return _with_card(model, named, Source(named, "code", named), kind="object", args=args)
    spec = text("spec", spec)
    source = parse_name(spec)
    if source.is_code:
        if not allow_code:
            raise LoopscopeError(f"{shown(spec)} is code, which runs only where you name it: {setting('model', spec)}")
        model = built(load_factory(source.kind, source.location), source.location, args, place, wanted)
        return _with_card(model, spec, source, kind=source.kind, args=args)
    options = CheckpointOptions.of(args)
    if wanted is None and source.published is not None:
        wanted = find_dtype(RUN_DTYPE)
    load = _load_random if options.random else _load_checkpoint
    looped, facts = load(source, options, place, wanted, offline)
    looped.name = options.named(source.name)
    looped.is_random = options.random  # type: ignore[assignment]
    return _with_card(looped, spec, source, args=args, **facts)


def _load_checkpoint(
    source: Source, options: CheckpointOptions, device: torch.device, dtype: torch.dtype | None, offline: bool | None
) -> tuple[LoopedModule, dict[str, Any]]:
    folder, commit = _located(source, options, offline)
    with _naming(source.name if source.kind == "embedded" else folder):
        checkpoint = open_checkpoint(folder)
        if _needs_transformers(checkpoint.config, options):
            stored = main_dtype(checkpoint.tensors.values())
            model = _loop_with_transformers(folder, options, device, dtype or stored)
        else:
            family = _family(source, options, checkpoint.config, list(checkpoint.tensors))
            model = build_model(family, checkpoint.config, checkpoint.tensors, options.chosen)
            matched = match_tensors(model, checkpoint.tensors)
            stored = main_dtype(matched.values())
            load_tensors(model, matched, device, dtype or stored)
            model.prepare()
    facts = {"kind": source.kind, "revision": commit, "stored_dtype": _dtype_name(stored), "files": checkpoint.files}
    return model, facts


def _needs_transformers(config: Mapping[str, Any], options: CheckpointOptions) -> bool:
    """Whether layers are to be looped of an architecture that is not written here."""
    from loopscope.models.families.layer_loop import ARCHITECTURES

    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else None
    return options.span is not None and isinstance(named, str) and named not in ARCHITECTURES


def _loop_with_transformers(
    folder: Path, options: CheckpointOptions, device: torch.device, dtype: torch.dtype
) -> LoopedModule:
    """Layers of any causal language model of transformers, without code of the checkpoint."""
    import transformers

    from loopscope.models.transformers_loop import loop_layers

    if options.family:
        raise LoopscopeError(f"looped layers have no option {shown(next(iter(options.family)))}: leave it out")
    assert options.span is not None
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except Exception as error:  # whatever transformers raises for a checkpoint that it cannot load
        reason = " ".join(str(error).split())[:200]
        named = read_config(folder)["architectures"][0]
        raise LoopscopeError(f"transformers cannot load {shown(named)} to loop its layers ({reason})") from error
    moved: Any = model
    return loop_layers(moved.to(device=device, dtype=dtype), *options.span)


def _located(
    source: Source, options: CheckpointOptions, offline: bool | None, *, weights: bool = True
) -> tuple[Path, str | None]:
    """The folder and, of a hub model, its commit; what cannot be run is refused before gigabytes travel."""
    if source.folder is not None:
        return source.folder, None
    repository = HubRepository(source.location, source.revision, offline=offline)
    folder = repository.fetch_description()
    if weights:
        with _naming(repository.repo_id):
            config = read_config(folder)
            if options.span is None:
                check_architecture(config)
            elif not _needs_transformers(config, options):
                build_model("loop", config, None, options.chosen)
        folder = repository.fetch_weights()
    return folder, repository.revision


def _load_random(
    source: Source, options: CheckpointOptions, device: torch.device, dtype: torch.dtype | None, offline: bool | None
) -> tuple[LoopedModule, dict[str, Any]]:
    revision = names = None
    config: Mapping[str, Any]
    if source.published is not None:
        config = source.published.config
        if not config:
            raise LoopscopeError(f"the sizes of {source.name} are not known here: load it without random weights")
    else:
        folder, revision = _located(source, options, offline, weights=False)
        with _naming(source.location):
            config, names = read_config(folder), _stored_names(folder)
    with _naming(source.location):
        family = _family(source, options, config, names)
        model = build_model(family, config, names, options.chosen)
    fill_randomly(model, device, dtype or _stated_dtype(config), options.seed)
    model.prepare()
    return model, {"kind": "random", "revision": revision, "random": True, "seed": options.seed}


@contextmanager
def _naming(what: Path | str) -> Iterator[None]:
    """Puts the checkpoint's name in front of complaints that do not have it yet."""
    try:
        yield
    except LoopscopeError as error:
        if str(what) in str(error):
            raise
        raise LoopscopeError(f"{what}: {error}") from None


def _family(source: Source, options: CheckpointOptions, config: Mapping[str, Any], names: list[str] | None) -> str:
    if options.span is not None:
        return "loop"
    if names is None and source.published is not None:
        return source.published.family
    return detect_family(config, names)


def _stored_names(folder: Path) -> list[str] | None:
    """The tensors a folder's index or header names; None where only the configuration is there."""
    if (folder / WEIGHTS).is_file():
        return list(read_header(folder / WEIGHTS))
    return list(index_shards(folder / INDEX)) if (folder / INDEX).is_file() else None


def _with_card(model: LoopedModel, spec: str, source: Source, **facts: Any) -> LoopedModel:
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    before = getattr(model, "card", None)
    known = before.checkpoint if isinstance(before, ModelCard) else None
    pinned = f"{source.location}@{source.revision}" if source.kind == "hub" and source.revision else spec
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
        checkpoint=known if source.is_code else pinned,
        **{"revision": None, "stored_dtype": None} | facts,
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
