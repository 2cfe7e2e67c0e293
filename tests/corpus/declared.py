"""Cases that follow from declarations: settings of a measurement, a manifest, the card of a learned head.

Every field gets values of other types, enormous ones and ones out of range; in files it is also left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from case import Case, call
from place import Place

WRONG: dict[str, Any] = {"an object": object(), "a complex": 1j, "a set of NaN": {math.nan}, "a nested list": [[[0]]]}
NUMBERS: dict[str, Any] = {"-1": -1, "1.5": 1.5, "nan": math.nan, "10**30": 10**30, "text": "x y", "a list": [1]}
TEXTS: dict[str, Any] = {"a NUL": "a\0b", "''": "", "a number": 7.5, "bytes": b"x"}
IN_FILES: dict[str, Any] = {
    "true": True,
    "an object": {"a": [1]},
    "10**30": 10**30,
    "-1": -1,
    "1.5": 1.5,
    "text": "\0x",
}
SET_BY_OTHERS = ("batch", "sample")
"""No user gives them."""


def cases() -> Iterator[Case]:
    yield from _settings()
    yield from _manifest()
    yield from _cards()


def _settings() -> Iterator[Case]:
    from loopscope import MeasureConfig

    def made(place: Place, **changes: Any) -> Any:
        return MeasureConfig(**{"model": str(place.model), "tasks": ["arithmetic"], "transitions": [1]} | changes)

    for name, field in MeasureConfig.model_fields.items():
        if name in SET_BY_OTHERS:
            continue
        kind = str(field.annotation)
        values = WRONG | (NUMBERS if "int" in kind else {}) | (TEXTS if "str" in kind or "Literal" in kind else {})
        if name == "model":
            values = {}  # an object may be a model; measuring says whether it is one
        for what, value in values.items():
            if (name, what) not in RIGHT:
                yield call(
                    f"MeasureConfig({name}={what})",
                    f"no {name}",
                    lambda p, name=name, value=value: made(p, **{name: value}),
                )
    yield call("MeasureConfig(nothing=1)", "no such setting", lambda p: made(p, nothing=1))


RIGHT = {("model_args", "''"), *((name, "a list") for name in ("transitions", "depths", "ids"))}
"""Values that are allowed."""


def _manifest() -> Iterator[Case]:
    from run_directories import MANIFEST, manifest, opened

    from loopscope.store.manifest import BatchInfo, Dtypes, Manifest, ModelInfo, TaskInfo

    parts = {"": Manifest, "model__": ModelInfo, "tasks__0__": TaskInfo, "dtypes__": Dtypes, "batch__": BatchInfo}
    for prefix, model in parts.items():
        for name, field in model.model_fields.items():
            values = dict(IN_FILES)
            if field.is_required():
                values["nothing at all"] = ...
            for what, value in values.items():
                if fits(model, name, value):
                    continue
                yield call(
                    f"manifest: {prefix.replace('__', '.')}{name} is {what}",
                    f"no {name}",
                    lambda p, at=prefix + name, value=value: opened(p.spoiled_run(MANIFEST, manifest(**{at: value}))),
                )


def fits(model: Any, name: str, value: Any) -> bool:
    """Whether a declared field takes a value, which is then damage that only the records' hash shows."""
    kind = str(model.model_fields[name].annotation)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return (isinstance(value, str) and kind == "<class 'str'>") or (is_number and "float" in kind)


def _cards() -> Iterator[Case]:
    from loopscope.control.heads import Card

    good = Card(kind="exit", model="m", boundary="b", labels="l", questions=1, positions=1).model_dump()
    for name, field in Card.model_fields.items():
        for what, value in (IN_FILES | {"nan": math.nan, "nothing at all": ...}).items():
            if fits(Card, name, value) or (value is ... and not field.is_required()):
                continue
            card = {key: held for key, held in (good | {name: value}).items() if held is not ...}
            yield call(f"card: {name} is {what}", f"no {name}", lambda p, card=card: head(p, json.dumps(card)))
    yield call("card: an unknown field", "of another program", lambda p: head(p, json.dumps(good | {"x": 1})))
    yield call("card: deep", "deeper than any card", lambda p: head(p, "[" * 100_000))
    yield call("card: empty", "nothing", lambda p: head(p, ""))


def head(place: Place, card: str) -> Any:
    """A head's file whose tensors are right."""
    import torch
    from safetensors.torch import save_file

    from loopscope.control.heads import load_head

    sizes = {"mean_F": (5,), "deviation_F": (5,), "weight_KF": (2, 5), "bias_K": (2,), "output_K": (2,), "offset": ()}
    path = place.here / "head.safetensors"
    save_file({f"loop2.{name}": torch.ones(size) for name, size in sizes.items()}, path, {"loopscope_head": card})
    return load_head(path)
