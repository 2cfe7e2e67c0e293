"""Objects: logits and states of the mathematics, tasks, wrapped models, policies, opened runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from harness import GOOD, OPTIONS, Case, Place, call, command, measure, shown


def cases() -> Iterator[Case]:
    yield from _mathematics()
    yield from _tasks()
    yield from _wrapped()
    yield from _opened()


def tensors() -> dict[str, Any]:
    """What is given where a tensor [2, 3] of floats is wanted; the first is one."""
    import torch

    good = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    return {
        "right": good, "a list": [[0.0, 1.0]], "integers": good.long(), "empty": good[:0], "a scalar": good[0, 0],
        "no columns": good[:, :0], "three axes": good[None], "another shape": torch.zeros(3, 4),
        "NaN": good * math.nan, "infinite": good + math.inf, "on no device": good.to("meta"),
    }  # fmt: skip


def affine(alpha: Any = 0.5, order: Any = 1, **changes: Any) -> Any:
    import loopscope as ls

    given = {"z0": tensors()["right"], "v": tensors()["right"].flip(0), "targets": [0, 1]} | changes
    return ls.affine_path(**given).derivatives(alpha, order=order)


def states(**changes: Any) -> Any:
    import loopscope as ls

    right = tensors()["right"]
    given = {"h": right, "h_plus": right.flip(0), "head_weight": right, "head_bias": None, "targets": [0, 1]}
    return ls.affine_path_from_states(**given | changes).gain


def classify(slope: Any = 1.0, gain: Any = 1.0) -> Any:
    import loopscope as ls

    return ls.classify(slope, gain), ls.predict(slope, gain)


def refused(function: Callable[..., Any], name: str, values: dict[str, Any] | list[Any]) -> Iterator[Case]:
    """One argument of a function, given each value in turn."""
    named = values if isinstance(values, dict) else {shown(value): value for value in values}
    for what, value in named.items():
        title = what if " object at " not in what else "an object"
        yield call(f"{function.__name__}({name}={title})", lambda p, v=value: function(**{name: v}))


def _mathematics() -> Iterator[Case]:
    bad = dict(list(tensors().items())[1:])
    for function, names in ((affine, ("z0", "v")), (states, ("h", "h_plus", "head_weight", "head_bias"))):
        for name in names:
            yield from refused(function, name, bad)
        targets = [None, "x", [0], [0, 1, 2], [0, 3], [-1, 0], [0.0, 1.0], [[0, 1]], [], [0, 10**30]]
        yield from refused(function, "targets", targets)
        yield call(f"{function.__name__}", lambda p, f=function: f(), GOOD)
    yield from refused(affine, "examples", [[0], [0.0, 1.0], [[0, 1]], [0, 2], [-1, 0]])
    yield from refused(affine, "impl", ["nothing", 5])
    yield from refused(affine, "alpha", [2.0, -0.1, math.nan, math.inf, "x", None, [], [[0.5]]])
    yield from refused(affine, "order", [-1, 99, 1.5, "1", None])
    for name in ("slope", "gain"):
        yield from refused(classify, name, [math.nan, math.inf, "x", None, 1j, [math.nan], [[1.0], [1.0, 2.0]]])


TEXT = {"prompt": "a", "solution": "b"}
TASKS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *(("from_rows", (rows,), {}) for rows in
      ([], 5, "rows", TEXT, [5], [{1: "a"}], [{"prompt": "a"}], [{"prompt": 5, "solution": "b"}])),
    *(("from_rows", ([TEXT],), {"name": name}) for name in ("", 5, "gsm8k", "a:b")),
    *(("from_rows", ([TEXT],), {"fields": fields}) for fields in ({"prompt": "question"}, {"prompt": 5})),
    *(("from_rows", ([TEXT],), {"template": template}) for template in ("x.toml", 5, {})),
    ("from_rows", ([TEXT],), {"train": 5}), ("from_dataset", ([TEXT],), {}), ("from_dataset", ({"test": []},), {}),
    *(("from_ids", given, {}) for given in
      (([[1]],), ([], []), (5, 5), ("12", "34"), ([[1], [2]], [[3]]), ([[1]], [[-3]]), ([[1]], [[1024]]))),
    ("from_ids", ([[1]], [[2]]), {"options": [[[1], [2]]], "answers": [0]}),
    ("from_ids", ([[1]],), {"options": [[[1], [2]]]}), ("from_ids", ([[1]],), {"options": [[[1], 2]], "answers": [0]}),
    *(("from_ids", ([[1]], [[2]]), {"decode": decode}) for decode in (5, print, ["a", "b"], {1: "a"})),
]  # fmt: skip
GOOD_TASKS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("from_ids", ([range(1, 3)], ((3,),)), {}),
    ("from_rows", (({"prompt": "a", "options": ("b", "c"), "answer": 1},),), {}),
    ("from_rows", (({"prompt": "a", "solution": x} for x in "bc"),), {}),
]


def _tasks() -> Iterator[Case]:
    """Each makes a task and measures it."""
    for several, wanted in ((TASKS, ("line",)), (GOOD_TASKS, GOOD)):
        for number, (method, given, named) in enumerate(several):
            made = partial(measured, method, given, named)
            yield call(f"Task.{method} {number}: {named}", made, wanted)


def measured(method: str, given: tuple[Any, ...], named: dict[str, Any], place: Place) -> Any:
    import loopscope as ls

    return measure(place, tasks=[getattr(ls.Task, method)(*given, **named)], limit=None)


def _wrapped() -> Iterator[Case]:
    import torch

    import loopscope as ls

    words, turn = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 8)
    ids = ls.Task.from_ids([[1, 2]], [[3]], name="ids")

    def wrapped(**changes: Any) -> Any:
        given = {"embed": words, "step": lambda h: h + torch.tanh(turn(h)), "readout": lambda h: h @ words.weight.T}
        return ls.wrap(**given | {"trained_depth": 2} | changes)

    def wrap(**changes: Any) -> Any:
        return ls.measure(wrapped(**changes), ids, transitions=[1], level="quick", device="cpu", output="wrapped")

    def raises(*_: Any) -> Any:
        raise ValueError("in the user's code")

    functions: dict[str, Any] = {
        "None returned": lambda h: None, "a list returned": lambda h: [h], "integers": lambda h: h.long(),
        "another shape": lambda h: h[..., :3], "NaN": lambda h: h * math.nan, "two arguments": lambda a, b: a,
        "not a function": 5, "meta": lambda h: torch.zeros_like(h, device="meta"),
    }  # fmt: skip
    for name in ("embed", "step", "readout"):
        ordinary = {"another shape", "NaN"} if name != "step" else {"NaN"}
        for what, function in functions.items():
            if what not in ordinary and not (name == "embed" and what == "integers"):
                wanted = ("line", "user code failed") if what == "two arguments" else ("line",)
                yield call(f"wrap({name}: {what})", lambda p, n=name, f=function: wrap(**{n: f}), wanted)
        yield call(f"wrap({name} raises)", lambda p, n=name: wrap(**{n: raises}), ("user code failed",))
    yield from refused(wrap, "trained_depth", ["x", -1, 1.5, 10**30, [1]])
    yield from refused(wrap, "name", [5, "", "a\0b", object()])
    yield from refused(wrap, "max_positions", ["x", 0, -1, 1.5])
    yield from refused(wrap, "head", [5, "x", turn, torch.zeros(3)])
    decide = "class Mine:\n    name, signals = 'mine', ()\n    def decide(self, seen, memory):\n        "
    for code in (
        *(f"{decide}{body}\n" for body in ("return None", "return 5", "raise ValueError('mine')")),
        *("class Mine:\n    def __init__(self, needed): ...\n", "Mine = 5\n", "class :\n", ""),
    ):
        yield command(
            f"control: the policy {code[-40:]!r}", "control", lambda p: p.run,
            lambda p, c=code: f"--policy={p.file('mine.py', c)}:Mine", wanted=("line", "user code failed"),
        )  # fmt: skip


def _opened() -> Iterator[Case]:
    import loopscope as ls
    from loopscope.report import write_report
    from loopscope.stats import Bootstrap

    def opened(path: Any) -> Any:
        return ls.Run(path)

    def page(runs: Any) -> Any:
        return write_report(runs, "page.html")

    def control(runs: Any) -> Any:
        return ls.control(runs)

    yield from refused(opened, "path", [None, 5, "", "nothing", object(), "a\0b", ["x"], "r" * 5000, b"x"])
    for function in (page, control):
        yield from refused(function, "runs", [[], None, 5, ["nothing"], object()])
    for value in ("nothing", None, 5, "", ["mechanism"], "$x$"):
        for method in ("table", "figure", "read"):
            yield call(f"Run.{method}({value!r})", lambda p, m=method, v=value: getattr(ls.Run(p.run), m)(v))
    for name in ("x", "x.doc", "/dev/null/x.pdf", "a\0.pdf"):
        yield call(f"figure.save({name!r})", lambda p, n=name: ls.Run(p.run).figure("direction-progress").save(n))
    for output in (None, 5, ".", "", "a\0.html"):
        yield call(f"write_report(output={output!r})", lambda p, o=output: write_report([p.run], o))
    yield call("rows of a file", lambda p: measure(p, tasks=[f"mine={p.file('my.jsonl', OPTIONS)}"]), GOOD)
    yield call("a figure", lambda p: ls.Run(p.run).figure("direction-progress").save("x.png"), GOOD)
    yield call("a report", lambda p: write_report([p.run], p.here / "r.html", Bootstrap(resamples=1)), GOOD)
