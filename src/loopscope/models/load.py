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
from loopscope.models.checkpoint import fetch_description, fetch_weights, open_checkpoint, read_config, stored_names
from loopscope.models.families import architecture_of, build_model, check_architecture, detect_family
from loopscope.models.in_memory import ModelSpec, spec_of, taken
from loopscope.models.registry import RUN_DTYPE, Source, parse_name
from loopscope.models.user_models import built, load_code, load_entry_point, model_arguments, user_models
from loopscope.models.weights import fill_randomly, load_tensors, main_dtype, match_tensors

if TYPE_CHECKING:
    from loopscope.models.base import LoopedModule
    from loopscope.models.protocol import LoopedModel


DTYPES = {str(dtype)[6:]: dtype for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}
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
        dtype: the dtype it was loaded in.
        device: where it was loaded to.
        parameters: unique parameters.
        trained_depth: the number of loops it was trained for.
        boundary: where the state is taken.
        revision: the full commit hash, for a hub model.
        stored_dtype: the dtype of most of the checkpoint's bytes; None without a checkpoint.
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
    dtype: str
    device: str
    parameters: int
    trained_depth: int
    boundary: str
    revision: str | None = None
    stored_dtype: str | None = None
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
        model, named = taken(spec, args, place, wanted), spec_of(spec)
        return _with_card(model, Source(named, named, "code", named), kind="object", args=args)
    source = parse_name(text("spec", spec))
    if not source.is_code:
        return _from_checkpoint(source, args, place, wanted, offline)
    if not allow_code:
        raise LoopscopeError(f"{shown(spec)} is code, which runs only where you name it: {setting('model', spec)}")
    point = user_models().get(source.location)
    factory = load_code(source.location) if point is None else load_entry_point(point)
    return _with_card(built(factory, source.location, args, place, wanted), source, kind=source.kind, args=args)


def _from_checkpoint(
    source: Source, args: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, offline: bool | None
) -> LoopedModel:
    """The model of a folder, of the hub, or of a configuration with random weights."""
    chosen = dict(args)
    random, seed = switch("random_weights", chosen.pop("random_weights", False)), chosen.pop("seed", 0)
    whole("seed", seed, -LARGEST_SEED, LARGEST_SEED)
    dtype = find_dtype(RUN_DTYPE) if dtype is None and source.published is not None else dtype
    with _naming(source.name if source.kind == "embedded" else source.location):
        if random:
            model, facts = _drawn(source, chosen, device, dtype, offline, seed)
        else:
            model, facts = _stored(source, chosen, device, dtype, offline)
    model.prepare()
    listed = ",".join(f"{key}={value}" for key, value in chosen.items())
    model.name = source.name + (f":{listed}" if listed else "") + (" (random weights)" if random else "")
    model.is_random = random  # type: ignore[assignment]
    return _with_card(model, source, args=args, **facts)


def _stored(
    source: Source, chosen: dict[str, Any], device: torch.device, dtype: torch.dtype | None, offline: bool | None
) -> tuple[LoopedModule, dict[str, Any]]:
    """A model with its weights, and what its card says of where they are from."""
    folder, revision = _located(source, offline)
    if source.kind == "hub":
        # What cannot be run is refused before gigabytes travel.
        config = read_config(folder)
        if "loop" not in chosen:
            check_architecture(config)
        elif not _needs_transformers(config, chosen):
            build_model("loop", config, None, chosen)
        fetch_weights(source.location, folder, offline=offline)
    checkpoint = open_checkpoint(folder)
    if _needs_transformers(checkpoint.config, chosen):
        stored = main_dtype(checkpoint.tensors.values())
        model = _loop_with_transformers(folder, chosen, device, dtype or stored)
    else:
        family = "loop" if "loop" in chosen else detect_family(checkpoint.config, checkpoint.tensors)
        model = build_model(family, checkpoint.config, checkpoint.tensors, chosen)
        matched = match_tensors(model, checkpoint.tensors)
        stored = main_dtype(matched.values())
        load_tensors(model, matched, device, dtype or stored)
    facts = {"kind": source.kind, "revision": revision, "files": checkpoint.files}
    return model, facts | {"stored_dtype": _dtype_name(stored)}


def _drawn(
    source: Source,
    chosen: dict[str, Any],
    device: torch.device,
    dtype: torch.dtype | None,
    offline: bool | None,
    seed: int,
) -> tuple[LoopedModule, dict[str, Any]]:
    """A model with random weights, of a configuration alone."""
    published, revision, names = source.published, None, None
    if published is not None:
        config, family = published.config, published.family
        if not config:
            raise LoopscopeError("its sizes are not known here: load it without random weights")
    else:
        folder, revision = _located(source, offline)
        config, names = read_config(folder), stored_names(folder)
        family = "loop" if "loop" in chosen else detect_family(config, names)
    model = build_model(family, config, names, chosen)
    stated = config.get("dtype") or config.get("torch_dtype")
    fill_randomly(model, device, dtype or (find_dtype(stated) if isinstance(stated, str) else torch.float32), seed)
    return model, {"kind": "random", "random": True, "seed": seed, "revision": revision}


def _located(source: Source, offline: bool | None) -> tuple[Path, str | None]:
    """The folder of the configuration and, of a hub model, its commit."""
    if source.kind != "hub":
        return Path(source.location), None
    folder = fetch_description(source.location, source.revision, offline=offline)
    return folder, folder.name


def _needs_transformers(config: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    """Whether layers are to be looped of an architecture that is not written here."""
    from loopscope.models.families.layer_loop import ARCHITECTURES

    named = architecture_of(config)
    return "loop" in chosen and named is not None and named not in ARCHITECTURES


def _loop_with_transformers(
    folder: Path, chosen: Mapping[str, Any], device: torch.device, dtype: torch.dtype
) -> LoopedModule:
    """Layers of any causal language model of transformers, without code of the checkpoint."""
    import transformers

    from loopscope.models.transformers_loop import loop_layers

    span = re.fullmatch(r"(\d{1,9})-(\d{1,9})", str(chosen["loop"]), re.ASCII)
    if span is None or len(chosen) > 1:
        raise LoopscopeError(f"{setting('model_args')}: looped layers take loop=FIRST-LAST alone, as in loop=10-20")
    try:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except Exception as error:  # whatever transformers raises for a checkpoint that it cannot load
        reason = " ".join(str(error).split())[:200]
        raise LoopscopeError(f"transformers cannot load it to loop its layers ({reason})") from error
    return loop_layers(model.to(device=device, dtype=dtype), int(span[1]), int(span[2]))


@contextmanager
def _naming(what: Path | str) -> Iterator[None]:
    """Puts the checkpoint's name in front of complaints that do not have it yet."""
    try:
        yield
    except LoopscopeError as error:
        if str(what) in str(error):
            raise
        raise LoopscopeError(f"{what}: {error}") from None


def _with_card(model: LoopedModel, source: Source, **facts: Any) -> LoopedModel:
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    before = getattr(model, "card", None)
    known = before.checkpoint if isinstance(before, ModelCard) else None
    pinned = f"{source.location}@{source.revision}" if source.kind == "hub" and source.revision else source.spec
    model.card = ModelCard(  # type: ignore[attr-defined]
        spec=source.spec,
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
        **facts,
    )
    return model


def find_device(device: str | torch.device) -> torch.device:
    """The device of a name; "auto" is the first accelerator, else the CPU.

    Raises:
        LoopscopeError: if there is no such device on this machine.
    """
    counts = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if device == "auto":
        return torch.device(next(kind for kind, count in counts.items() if count))
    # torch knows devices that hold no numbers (meta) or that no model was ever run on.
    found = re.fullmatch(r"(cuda|mps|cpu)(?::(\d{1,4}))?", str(device), re.ASCII)
    if found is None:
        raise LoopscopeError(f"there is no device {shown(str(device))} for models: choose cpu, cuda, cuda:1, … or auto")
    if int(found[2] or 0) >= counts[found[1]]:
        raise LoopscopeError(f"{device} was chosen but this machine has {counts[found[1]]}: choose cpu or auto")
    return torch.device(device)


def find_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The floating-point dtype of a name.

    >>> find_dtype("bf16")
    torch.bfloat16
    """
    name = str(dtype).removeprefix("torch.").lower()
    try:
        return DTYPES[_ABBREVIATIONS.get(name, name)]
    except KeyError:
        raise LoopscopeError(f"{shown(name)} is not a dtype for weights: choose one of {', '.join(DTYPES)}") from None


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
