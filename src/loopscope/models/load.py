"""`load_model`: from what the user wrote to a model that is ready to be measured, with a card that says what it is.

Options of a checkpoint are `model_args`: `loop="10-20"` (the layers to loop, of a model that is not looped),
`random_weights` and `seed`, and what its family lets one choose (`loopscope models` lists it).

The model arrives on the meta device. Names and shapes are compared first, and bytes copied only if all agree: a
checkpoint that does not fit costs no memory and leaves nothing half loaded. Values are not inspected: a checkpoint that
holds NaN loads, and its measurements will say so. Parameters own their memory afterwards: a checkpoint that is
overwritten during a run cannot change the weights under it.

Random weights size a run before a checkpoint is at hand. Every matrix is drawn with standard deviation 1/√(fan-in),
which keeps a normed input's scale, embeddings as the families initialise them, norms are one and biases zero: states
stay finite at any depth and in any dtype, and logits are of order one. An adapter that joins a state with the input
counts the state for less (`CALM`), so that a loop comes to rest as a trained one does. The numbers mean nothing: the
model's name says so, `model.is_random` and `ModelCard.random`.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from loopscope.errors import LARGEST_SEED, LoopscopeError, setting, shown, switch, text, whole
from loopscope.models.checkpoint import (
    DESCRIPTION,
    TensorEntry,
    fetch,
    fetch_weights,
    open_checkpoint,
    read_config,
    stored_names,
)
from loopscope.models.families import architecture_of, build_model, check_architecture, detect_family
from loopscope.models.families.layer_loop import ARCHITECTURES
from loopscope.models.in_memory import ModelSpec, spec_of, taken
from loopscope.models.layers.blocks import OffsetNorm
from loopscope.models.registry import RUN_DTYPE, Published, Source, built, load_code, model_arguments, parse_name

if TYPE_CHECKING:
    from loopscope.models.protocol import LoopedModel, LoopedModule


DTYPES = {str(dtype)[6:]: dtype for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}
_ABBREVIATIONS = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "fp64": "float64"}
_STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
CALM = 0.15
"""Of the state's half of an adapter: after 19 steps an update of Huginn's size changes states by about a hundredth."""
# The usual width of a fresh embedding where the configuration does not say (Ouro, Llama).
_EMBEDDING_STD = 0.02


@dataclass(frozen=True)
class ModelCard:
    """The provenance of a loaded model.

    Attributes:
        spec: what the user wrote.
        name: what tables call it.
        family: "ouro", "huginn", …
        kind: hub, folder, embedded, random, entry point, code or object.
        location: the hub name, the folder, or where the code is.
        dtype: the dtype it was loaded in.
        parameters: unique parameters.
        trained_depth: the number of loops it was trained for.
        boundary: where the state is taken.
        revision: the full commit hash, for a hub model.
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
    parameters: int
    trained_depth: int
    boundary: str
    revision: str | None = None
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
        found = {}
        for path in self.files:
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        return found


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
    model = built(load_code(source.location), source.name, args, place, wanted)
    return _with_card(model, source, kind=source.kind, args=args)


def _from_checkpoint(
    source: Source, args: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, offline: bool | None
) -> LoopedModel:
    """The model of a folder, of the hub, or of a configuration with random weights."""
    chosen, published = dict(args), source.published
    random, seed = switch("random_weights", chosen.pop("random_weights", False)), chosen.pop("seed", 0)
    whole("seed", seed, -LARGEST_SEED, LARGEST_SEED)
    dtype = find_dtype(RUN_DTYPE) if dtype is None and published is not None else dtype
    facts: dict[str, Any] = {"kind": source.kind, "args": args}
    with _naming(source.name if source.kind == "embedded" else source.location):
        folder = Path(source.location)
        if source.kind == "hub" and not (random and published is not None):
            folder = fetch(source.location, source.revision, DESCRIPTION, offline=offline)
            facts["revision"] = folder.name
        if random:
            facts |= {"kind": "random", "random": True, "seed": seed}
            model = _drawn(published or folder, chosen, device, dtype, seed)
        else:
            if source.kind == "hub":
                # What cannot be run is refused before gigabytes travel.
                _check_runs(read_config(folder), chosen)
                fetch_weights(source.location, folder, offline=offline)
            model, facts["files"] = _stored(folder, chosen, device, dtype)
    model.prepare()
    listed = ",".join(f"{key}={value}" for key, value in chosen.items())
    model.name = source.name + (f":{listed}" if listed else "") + (" (random weights)" if random else "")
    model.is_random = random  # type: ignore[assignment]
    return _with_card(model, source, **facts)


def _needs_transformers(config: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    """Whether layers are to be looped of an architecture that is not written here."""
    named = architecture_of(config)
    return "loop" in chosen and named is not None and named not in ARCHITECTURES


def _check_runs(config: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
    if "loop" not in chosen:
        check_architecture(config)
    elif not _needs_transformers(config, chosen):
        build_model("loop", config, None, chosen)


def _stored(
    folder: Path, chosen: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None
) -> tuple[LoopedModule, tuple[Path, ...]]:
    """A model with the weights of a folder, and the files that were read."""
    config, tensors, files = open_checkpoint(folder)
    if _needs_transformers(config, chosen):
        from loopscope.models.transformers_loop import loop_checkpoint

        return loop_checkpoint(folder, chosen, device, dtype or main_dtype(tensors.values())), files
    family = "loop" if "loop" in chosen else detect_family(config, tensors)
    model = build_model(family, config, tensors, chosen)
    matched = match_tensors(model, tensors)
    load_tensors(model, matched, device, dtype or main_dtype(matched.values()))
    return model, files


def _drawn(
    known: Published | Path, chosen: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, seed: int
) -> LoopedModule:
    """A model with random weights, of a configuration alone."""
    if isinstance(known, Path):
        config, names = read_config(known), stored_names(known)
        family = "loop" if "loop" in chosen else detect_family(config, names)
    else:
        config, names, family = dict(known.config), None, known.family
        if not config:
            raise LoopscopeError("its sizes are not known here: load it without random weights")
    model = build_model(family, config, names, chosen)
    stated = config.get("dtype") or config.get("torch_dtype")
    fill_randomly(model, device, dtype or (find_dtype(stated) if isinstance(stated, str) else torch.float32), seed)
    return model


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
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    before = getattr(model, "card", None)
    known = before.checkpoint if isinstance(before, ModelCard) else None
    pinned = f"{source.location}@{source.revision}" if source.kind == "hub" and source.revision else source.spec
    model.card = ModelCard(  # type: ignore[attr-defined]
        spec=source.spec,
        name=model.name,
        family=model.family,
        location=source.location,
        dtype=str(model.dtype).removeprefix("torch."),
        parameters=sum(parameter.numel() for parameter in parameters),
        trained_depth=model.trained_depth,
        boundary=model.boundary,
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
    found = DTYPES.get(_ABBREVIATIONS.get(name, name))
    if found is None:
        raise LoopscopeError(f"{shown(name)} is not a dtype for weights: choose one of {', '.join(DTYPES)}")
    return found


def match_tensors(model: LoopedModule, tensors: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The stored tensor of every parameter, tied parameters once.

    Raises:
        LoopscopeError: naming the first missing, unexpected or misshapen tensor, or one of unsupported type.
    """
    tensors = model.arrange(tensors)
    expected, tied = dict(model.named_parameters(remove_duplicate=False)), model.tied
    missing = [name for name in expected if name not in tensors and name not in tied]
    if missing:
        raise LoopscopeError(f"the checkpoint lacks {_listed(missing)}: it is incomplete or of another architecture")
    extra = [name for name in tensors if name not in expected and name not in model.ignored]
    if extra:
        raise LoopscopeError(
            f"the checkpoint holds {_listed(extra)}, which a {model.family} model of this configuration does not have"
        )
    for name, entry in ((name, tensors[name]) for name in expected if name in tensors):
        wanted = list(expected[name].shape)
        if list(entry.shape) != wanted:
            raise LoopscopeError(
                f"{name!r} has shape {list(entry.shape)} in the checkpoint but the configuration makes it {wanted}"
            )
        if entry.dtype not in _STORED:
            raise LoopscopeError(
                f"{entry.path} stores {name!r} as {entry.dtype}, which is not supported: "
                f"export the weights as one of {', '.join(_STORED)}"
            )
    for name, source in tied.items():
        if name in tensors and not torch.equal(tensors[name].read(), tensors[source].read()):
            warnings.warn(
                f"the configuration ties {name} to {source} but the checkpoint stores different values: "
                f"{source} is used for both",
                stacklevel=2,
            )
    return {name: tensors[name] for name in expected if name not in tied}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"the tensor{'s' * (len(names) > 1)} {', '.join(shown(name) for name in names[:3])}{more}"


def main_dtype(tensors: Iterable[TensorEntry]) -> torch.dtype:
    """The dtype of most of the checkpoint's numbers."""
    sizes: dict[str, int] = {}
    for entry in tensors:
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + math.prod(entry.shape)
    return _STORED.get(max(sizes, key=lambda name: sizes[name]), torch.float32)


@torch.no_grad()
def load_tensors(
    model: LoopedModule, matched: Mapping[str, TensorEntry], device: torch.device, dtype: torch.dtype
) -> None:
    """Allocates a meta model and fills it, tensor by tensor, from the files."""
    for name, parameter in _allocated(model, device, dtype).items():
        # The file is opened for each tensor, so that no more of it is mapped into memory than that one.
        parameter.data.copy_(matched[name].read())


@torch.no_grad()
def fill_randomly(model: LoopedModule, device: torch.device, dtype: torch.dtype, seed: int) -> None:
    """Allocates a meta model and draws its weights where they lie, in their dtype.

    Each tensor has a generator of its own, seeded by `seed` and its name, so a tensor's values do not depend on
    the others. CPU and CUDA generators differ: a seed fixes the values for one kind of device.
    """
    embedding_std = getattr(getattr(model, "config", None), "state_std", _EMBEDDING_STD)
    for name, parameter in _allocated(model, device, dtype).items():
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        _fill(name, parameter.data, embedding_std, generator)
    for module in model.modules():
        if isinstance(module, OffsetNorm):
            module.weight.zero_()


def _fill(name: str, tensor: Tensor, embedding_std: float, generator: torch.Generator) -> None:
    if name.endswith("bias"):
        tensor.zero_()
    elif name.endswith("z_L_init"):
        tensor.normal_(generator=generator)
    elif tensor.dim() == 1:
        tensor.fill_(1.0)
    elif name.endswith(("embed_tokens.weight", "wte.weight")):
        tensor.normal_(0.0, embedding_std, generator=generator)
    else:
        tensor.normal_(0.0, tensor.shape[-1] ** -0.5, generator=generator)
        if name.endswith("adapter.weight") and tensor.shape[1] == 2 * tensor.shape[0]:
            tensor[:, : tensor.shape[0]] *= CALM


def _allocated(model: LoopedModule, device: torch.device, dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """Gives the parameters of a meta model memory of their own on the device, uninitialised; tied ones once."""
    named = model.named_parameters(remove_duplicate=False)
    shapes = {name: weight.shape for name, weight in named if name not in model.tied}
    dtypes = {name: model.parameter_dtype(name, dtype) for name in shapes}
    needed = sum(shape.numel() * dtypes[name].itemsize for name, shape in shapes.items())
    too_large = LoopscopeError(
        f"the weights need {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, more than {device} "
        f"has free: choose a smaller dtype or another device"
    )
    # A system that lends more memory than it has would end the process only when the weights are written.
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    if device.type == "cpu" and needed > installed:
        raise too_large
    placed: dict[str, nn.Parameter] = {}
    try:
        for name, shape in shapes.items():
            owner, _, leaf = name.rpartition(".")
            placed[name] = nn.Parameter(torch.empty(shape, dtype=dtypes[name], device=device), requires_grad=False)
            setattr(model.get_submodule(owner), leaf, placed[name])
    except RuntimeError as error:  # torch.OutOfMemoryError on an accelerator, a plain RuntimeError on the CPU
        if "memory" not in str(error):
            raise
        raise too_large from None
    model.tie()
    return placed
