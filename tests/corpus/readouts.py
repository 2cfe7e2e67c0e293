"""The mathematics alone: logits, states, heads, targets, scales."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from case import Case, call


def cases() -> Iterator[Case]:
    yield from _affine()
    yield from _states()
    yield from _path()
    yield from _scalars()
    yield from _others()
    yield from _near_misses()


def tensors() -> dict[str, Any]:
    import torch

    good = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    return {
        "None": None,
        "a list": [[0.0, 1.0]],
        "text": "x",
        "5": 5,
        "an object": object(),
        "integers": good.long(),
        "booleans": good.bool(),
        "complex": good.to(torch.complex64),
        "empty": torch.zeros(0, 3),
        "no columns": torch.zeros(2, 0),
        "three axes": torch.zeros(1, 2, 3),
        "a scalar": torch.tensor(1.0),
        "another shape": torch.zeros(3, 3),
        "transposed": good.T,
        "NaN": good.clone().fill_(math.nan),
        "infinite": good.clone().fill_(math.inf),
        "one NaN": torch.tensor([[0.0, math.nan, 0.0], [1.0, 0.0, 0.0]]),
        "on no device": good.to("meta"),
        "sparse": good.to_sparse(),
        "a NumPy array": good.numpy(),
    }


TARGETS: dict[str, Any] = {
    "None": None, "text": "x", "too few": [0], "too many": [0, 1, 2], "outside": [0, 3], "negative": [-1, 0],
    "floats": [0.0, 1.0], "booleans": [True, False], "nested": [[0, 1]], "an object": object(), "texts": ["a", "b"],
    "None inside": [0, None], "5": 5, "[]": [], "ragged": [[0], [0, 1]], "a huge number": [0, 10**30],
}  # fmt: skip


def affine(**changes: Any) -> Any:
    import torch

    import loopscope as ls

    given = {"z0": torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), "v": torch.ones(2, 3), "targets": [0, 1]} | changes
    path = ls.affine_path(given.pop("z0"), given.pop("v"), given.pop("targets"), **given)
    return path.slope, path.Q, path.gain


def states(**changes: Any) -> Any:
    import torch

    import loopscope as ls

    given: dict[str, Any] = {"h": torch.ones(2, 3), "h_plus": torch.zeros(2, 3), "head_weight": torch.ones(5, 3)}
    given |= {"head_bias": None, "targets": [0, 1]} | changes
    path = ls.affine_path_from_states(**given)
    return path.slope, path.gain


def _affine() -> Iterator[Case]:
    for parameter in ("z0", "v"):
        for name, value in tensors().items():
            yield call(
                f"affine_path({parameter}={name})",
                "no logits",
                lambda p, parameter=parameter, value=value: affine(**{parameter: value}),
            )
    for name, value in TARGETS.items():
        yield call(f"affine_path(targets={name})", "no labels", lambda p, value=value: affine(targets=value))
    for name, value in {k: v for k, v in TARGETS.items() if k != "None"}.items():
        if name not in ("outside",):
            yield call(f"affine_path(examples={name})", "no examples", lambda p, value=value: affine(examples=value))
    yield call("affine_path(examples with a gap)", "example 1 is empty", lambda p: affine(examples=[0, 2]))
    for name, value in {"nothing": "nothing", "None": None, "5": 5, "a list": ["blocked"]}.items():
        yield call(f"affine_path(impl={name})", "no implementation", lambda p, value=value: affine(impl=value))
    for parameter in ("block_tokens",):
        for name, value in {"0": 0, "-1": -1, "1.5": 1.5, "text": "8", "true": True, "nan": math.nan}.items():
            yield call(
                f"affine_path({parameter}={name})",
                "no block",
                lambda p, parameter=parameter, value=value: affine(**{parameter: value}),
            )


def _states() -> Iterator[Case]:
    import torch

    for parameter in ("h", "h_plus", "head_weight"):
        for name, value in tensors().items():
            if parameter == "head_weight" and name in ("another shape",):
                continue
            yield call(
                f"affine_path_from_states({parameter}={name})",
                "no states or head",
                lambda p, parameter=parameter, value=value: states(**{parameter: value}),
            )
    for name, value in {
        "text": "x",
        "a list": [0.0] * 5,
        "too short": torch.zeros(4),
        "a matrix": torch.zeros(5, 1),
        "NaN": torch.full((5,), math.nan),
        "integers": torch.zeros(5).long(),
    }.items():
        yield call(
            f"affine_path_from_states(head_bias={name})", "no bias", lambda p, value=value: states(head_bias=value)
        )
    for name, value in {
        "float16": torch.float16,
        "text": "float32",
        "None": None,
        "int64": torch.int64,
        "5": 5,
    }.items():
        yield call(
            f"affine_path_from_states(dtype={name})", "no arithmetic", lambda p, value=value: states(dtype=value)
        )
    for name, value in {"outside": [0, 5], "too few": [0], "None": None, "text": "ab"}.items():
        yield call(
            f"affine_path_from_states(targets={name})", "no labels", lambda p, value=value: states(targets=value)
        )


def _path() -> Iterator[Case]:
    def path() -> Any:
        import torch

        import loopscope as ls

        return ls.affine_path(torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[4.0, -1.0, 6.0]]), targets=[0])

    for name, value in {
        "2": 2.0,
        "-0.1": -0.1,
        "nan": math.nan,
        "inf": math.inf,
        "text": "x",
        "None": None,
        "[]": [],
        "nested": [[0.5]],
        "true": True,
        "complex": 1j,
        "an object": object(),
        "ragged": [[0], [0, 1]],
        "[None]": [None],
    }.items():
        yield call(f"path.value({name})", "no scale", lambda p, value=value: path().value(value))
        yield call(
            f"path.derivatives({name}, order=1)", "no scale", lambda p, value=value: path().derivatives(value, order=1)
        )
    for name, value in {"-1": -1, "99": 99, "1.5": 1.5, "text": "1", "true": True, "None": None}.items():
        yield call(
            f"path.derivatives(0.5, order={name})",
            "no order",
            lambda p, value=value: path().derivatives(0.5, order=value),
        )


def _scalars() -> Iterator[Case]:
    import numpy as np

    odd: dict[str, Any] = {
        "nan": math.nan,
        "inf": math.inf,
        "-inf": -math.inf,
        "text": "x",
        "None": None,
        "true": True,
        "complex": 1j,
        "a dict": {},
        "an object": object(),
        "[nan]": [math.nan],
        "texts": ["x"],
        "ragged": [[1.0], [1.0, 2.0]],
        "[None]": [None],
        "dates": np.array(["2001-01-01"], dtype="datetime64[D]"),
        "two for one": [1.0, 2.0, 3.0],
    }
    for name, value in odd.items():
        other: Any = [1.0, 2.0] if name == "two for one" else 1.0
        for function in ("classify", "predict"):
            yield call(f"{function}({name}, …)", "no number", lambda p, f=function, v=value, o=other: scalar(f, v, o))
            yield call(f"{function}(…, {name})", "no number", lambda p, f=function, v=value, o=other: scalar(f, o, v))


def scalar(function: str, first: Any, second: Any) -> Any:
    import loopscope as ls

    return getattr(ls, function)(first, second)


def _others() -> Iterator[Case]:
    def option(**changes: Any) -> Any:
        import torch

        import loopscope as ls

        paths = ls.affine_path(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.ones(2, 2), [0, 1], examples=[0, 1])
        given = {"path": paths, "question": [0, 0], "correct": [0]} | changes
        found = ls.option_path(given["path"], given["question"], given["correct"])
        return found.slope

    for name, value in {
        "5": 5,
        "too few": [0],
        "floats": [0.0, 0.0],
        "text": "x",
        "negative": [-1, 0],
        "a gap": [0, 2],
        "an object": object(),
    }.items():
        yield call(f"option_path(question={name})", "no questions", lambda p, value=value: option(question=value))
    for name, value in {
        "None": None,
        "outside": [2],
        "negative": [-1],
        "floats": [0.0],
        "text": "x",
        "too many": [0, 0],
        "an object": object(),
    }.items():
        yield call(f"option_path(correct={name})", "no option", lambda p, value=value: option(correct=value))
    for name, value in {"None": None, "5": 5, "text": "x", "an object": object()}.items():
        yield call(f"option_path(path={name})", "no path", lambda p, value=value: option(path=value))


def _near_misses() -> Iterator[Case]:
    import numpy as np
    import torch

    vector = torch.tensor([0.0, 1.0, 0.0])
    good = {
        "a vector": {"z0": vector, "v": vector, "targets": 0},
        "float16": {"z0": torch.zeros(2, 3).half(), "v": torch.ones(2, 3).half()},
        "targets as a NumPy array": {"targets": np.array([0, 1])},
        "targets as int32": {"targets": torch.tensor([0, 1], dtype=torch.int32)},
        "no displacement": {"v": torch.zeros(2, 3)},
        "examples": {"examples": [0, 1]},
        "large logits": {"z0": torch.full((2, 3), 1e30), "v": torch.ones(2, 3)},
        "a view": {"z0": torch.zeros(3, 2).T, "v": torch.ones(2, 3)},
    }
    for name, changes in good.items():
        yield call(
            f"accepted: affine_path of {name}",
            "as documented",
            lambda p, changes=changes: affine(**changes),
            accepted=True,
        )
    yield call(
        "accepted: classify of denormals", "numbers", lambda p: scalar("classify", 5e-324, -5e-324), accepted=True
    )
    yield call(
        "accepted: predict of whole numbers", "numbers", lambda p: scalar("predict", [1, 2], [-1, 0]), accepted=True
    )
    yield call(
        "accepted: states in bfloat16",
        "as stored",
        lambda p: states(
            h=torch.ones(2, 3).bfloat16(), h_plus=torch.zeros(2, 3).bfloat16(), head_weight=torch.ones(5, 3).bfloat16()
        ),
        accepted=True,
    )
