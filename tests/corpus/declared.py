"""Cases that follow from declarations: each field of each pydantic model that holds what a user or a stranger gave.

A field gets values of other types, enormous ones, ones beyond its declared range; in files it is also left out, and an
unknown one is added.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import EITHER, OURO, Case, Place, call, measure, shown

WRONG: dict[str, Any] = {"an object": object(), "a complex": 1j, "a set of NaN": {math.nan}, "nested": [[[0]]]}
NUMBERS: dict[str, Any] = {"-1": -1, "1.5": 1.5, "nan": math.nan, "10**30": 10**30, "text": "x y", "a list": [1]}
TEXTS: dict[str, Any] = {"a NUL": "a\0b", "''": "", "a number": 7.5, "bytes": b"x"}
IN_FILES: dict[str, Any] = {
    "true": True, "an object": {"a": [1]}, "a list": [[1]], "10**30": 10**30, "-1": -1, "1.5": 1.5, "text": "\0x",
    "nan": math.nan, "1e308": 1e308, "long": "x" * 100_000,
}  # fmt: skip
SET_BY_OTHERS = ("batch", "sample")
"""Settings that no user gives."""
RIGHT = {("model_args", "''"), *((name, "a list") for name in ("transitions", "depths", "ids"))}


def cases() -> Iterator[Case]:
    yield from _settings()
    yield from _config()
    yield from _manifest()
    yield from _cards()


def _settings() -> Iterator[Case]:
    from loopscope import MeasureConfig

    def made(place: Place, **changes: Any) -> Any:
        return MeasureConfig(**{"model": str(place.model), "tasks": ["arithmetic"], "transitions": [1]} | changes)

    for name, field in MeasureConfig.model_fields.items():
        if name in (*SET_BY_OTHERS, "model"):  # an object may be a model; measuring says whether it is one
            continue
        kind = str(field.annotation)
        values = WRONG | (NUMBERS if "int" in kind else {}) | (TEXTS if "str" in kind or "Literal" in kind else {})
        for what, value in {**values, **beyond(field)}.items():
            if (name, what) not in RIGHT:
                yield call(f"MeasureConfig({name}={what})", lambda p, n=name, v=value: made(p, **{n: v}))
    yield call("MeasureConfig(nothing=1)", lambda p: made(p, nothing=1))
    yield call("measure(config=5)", lambda p: measure(p, config=5))


def beyond(field: Any) -> dict[str, Any]:
    """Numbers just outside the declared range of a field."""
    steps = {"ge": -1, "gt": 0, "le": 1, "lt": 0}
    found = {}
    for bound in field.metadata:
        for name, step in steps.items():
            if (end := getattr(bound, name, None)) is not None:
                found[f"beyond {name}={end}"] = end + step
    return found


def spoiled_fields(model: Any, kept: tuple[str, ...] = ()) -> Iterator[tuple[str, str, Any, tuple[str, ...]]]:
    """What is wrong, a field, its value (`...`: left out), and what must come of it."""
    for name, field in model.model_fields.items():
        values = {**IN_FILES, **beyond(field), **({"left out": ...} if field.is_required() else {})}
        kind = str(field.annotation)
        for what, value in values.items():
            number = isinstance(value, int | float) and value is not True and math.isfinite(value)
            fits = {"true": "bool", "text": "str", "long": "str"}.get(what, "float" if number else "dict")
            bounded = what == "long" and "str_max_length" in model.model_config
            wanted = EITHER if (fits in kind or "dict" in kind) and not bounded else ("line",)
            if name not in kept:
                yield f"{name} {what}", name, value, wanted
    yield "an unknown field", "x", 1, EITHER if model.model_config.get("extra") == "ignore" else ("line",)


def put(content: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The content with a field changed, or left out."""
    return {key: held for key, held in {**content, name: value}.items() if held is not ...}


def _config() -> Iterator[Case]:
    """config.json of a checkpoint: more fields than are declared are allowed, and null is a field's default."""
    import loopscope as ls
    from loopscope.models.families.ouro import OuroConfig
    from loopscope.models.registry import EMBEDDED

    def load(place: Place, config: dict[str, Any], size: int = 0, **more: Any) -> Any:
        folder = place.copy("model")
        (folder / "config.json").write_text(json.dumps(config))
        if size:
            os.truncate(folder / "config.json", size)
        return ls.load_model(folder, **more)

    free = ("eos_token_id", "early_exit_threshold", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters")
    for what, name, value, wanted in spoiled_fields(OuroConfig, kept=("inside",)):
        config = put(OURO, name, value)
        yield call(f"config.json: {what}", lambda p, c=config: load(p, c), EITHER if name in free else wanted)
    by_hand: list[dict[str, Any]] = [
        {"model_type": None, "architectures": None}, {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
        {"model_type": ["ouro"], "architectures": 5}, {"model_type": None, "architectures": {"a": 1}},
        {"hidden_size": 32}, {"vocab_size": 300}, {"num_hidden_layers": 1_000_000}, {"num_attention_heads": 3},
        {"head_dim": 7}, {"hidden_act": "swish9"}, {"rope_scaling": {"type": "nothing", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": math.nan}}, {"rope_theta": 10**400}, {"vocab_size": 10**15},
        {"architectures": ["x" * 5000], "model_type": None},
    ]  # fmt: skip
    for changes in by_hand:
        yield call(f"config.json: {shown(changes)}", lambda p, c=OURO | changes: load(p, c))
    yield call("config.json of a gigabyte", lambda p: load(p, OURO, 1 << 30))
    absurd: list[dict[str, Any]] = [{"vocab_size": 2**31 - 1, "hidden_size": 2**20}, {"num_hidden_layers": 10**8}]
    for changes in absurd:
        config = OURO | changes
        yield call(f"random weights: {changes}", lambda p, c=config: load(p, c, model_args={"random_weights": True}))
    huginn = json.loads((EMBEDDED / "toy-huginn" / "config.json").read_text())
    drawn: list[dict[str, Any]] = [{"std": math.inf, "embed_scale": 1.0}, {"std": 0.1, "embed_scale": 1e300}]
    for changes in (*({"init_values": values} for values in drawn), {"mean_recurrence": 10**18}):
        yield call(f"config.json of toy-huginn: {changes}", lambda p, c=huginn | changes: load(p, c))


def _manifest() -> Iterator[Case]:
    """Resealed: every record names the altered manifest, as a stranger would send it."""
    from run_folders import read_everything, resealed

    from loopscope.store.manifest import BatchInfo, Dtypes, Manifest, ModelInfo, TaskInfo

    parts: dict[str, tuple[Any, Callable[[dict[str, Any]], dict[str, Any]]]] = {
        "": (Manifest, lambda content: content),
        "model.": (ModelInfo, lambda content: content["model"]),
        "tasks.0.": (TaskInfo, lambda content: content["tasks"][0]),
        "dtypes.": (Dtypes, lambda content: content["dtypes"]),
        "batch.": (BatchInfo, lambda content: content["batch"]),
    }
    for prefix, (model, at) in parts.items():
        for what, name, value, wanted in spoiled_fields(model):

            def change(content: dict[str, Any], at: Any = at, name: str = name, value: Any = value) -> None:
                part = at(content)
                kept = put(part, name, value)
                part.clear()
                part.update(kept)

            wanted = EITHER if name == "x" else wanted  # of a version to come
            yield call(f"manifest: {prefix}{what}", lambda p, c=change: read_everything(resealed(p, c)), wanted)


def _cards() -> Iterator[Case]:
    from loopscope.control.heads import Card

    good = Card(kind="exit", model="m", boundary="b").model_dump()
    for what, name, value, wanted in spoiled_fields(Card):
        card = json.dumps(put(good, name, value))
        yield call(f"card: {what}", lambda p, c=card: head(p, c), wanted)
    for name, shape in {"inner.bias": (4,), "inner.weight": (10,), "outer.bias": ()}.items():
        yield call(f"head: {name} of shape {shape}", lambda p, n=name, s=shape: head(p, json.dumps(good), **{n: s}))
    for loop in ("loop0", "loop-1", "loopx", "2"):
        yield call(f"head: tensors of {loop}", lambda p, loop=loop: head(p, json.dumps(good), loop))


def head(place: Place, card: str, loop: str = "loop2", **shapes: tuple[int, ...]) -> Any:
    """A head's file whose tensors are right but for the shapes given."""
    import torch
    from safetensors.torch import save, save_file

    from loopscope.control.heads import load_head
    from loopscope.store import sha256_bytes

    sizes = {"inner.weight": (2, 5), "inner.bias": (2,), "outer.weight": (1, 2), "outer.bias": (1,)}
    path: Path = place.here / "head.safetensors"
    tensors = {f"{loop}.{name}": torch.ones(size) for name, size in {**sizes, **shapes}.items()}
    digest = sha256_bytes(save(tensors, {"loopscope_head": card}))
    save_file(tensors, path, {"loopscope_head": f"{digest} {card}"})
    return load_head(path)
