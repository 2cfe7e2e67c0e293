"""Calls in Python: a wrong type or value for every argument of `measure`, `load_model`, `load_task`, `Run`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from case import Case, call
from flags import device, fifo
from place import OPTIONS, Place

ODD: dict[str, Any] = {"an object": object(), "a function": len, "bytes": b"x", "a dict": {"a": 1}, "a complex": 1j}


def measure(place: Place, **changes: Any) -> Any:
    import loopscope as ls

    given: dict[str, Any] = {"model": str(place.model), "tasks": ["arithmetic"], "output": place.here / "out"}
    given |= {"transitions": [1], "limit": 1, "level": "quick", "device": "cpu"} | changes
    return ls.measure(**{key: value for key, value in given.items() if value is not ...})


BAD: dict[str, dict[str, Any]] = {
    "transitions": {
        "text": "4 5", "a word": "four", "bytes": b"4", "a float": 4.0, "floats": [4.0], "true": True, "[True]": [True],
        "[None]": [None], "[[4]]": [[4]], "['x']": ["x"], "[-1]": [-1], "[nan]": [math.nan], "[10**30]": [10**30],
        "range(10**9)": range(10**9), "a dict": {4: 5}, "an object": object(), "[1.5]": [1.5], "(1, '2-3')": (1, "2-3"),
    },
    "depths": {
        "text": "1 2", "floats": [1.5], "[True]": [True], "[None]": [None], "[-1]": [-1], "an object": object(),
        "range(10**10)": range(10**10), "[nan]": [math.nan], "a dict": {"a": 1}, "[[1]]": [[1]],
    },
    "limit": {
        "0": 0, "-1": -1, "1.5": 1.5, "text": "many", "true": True, "a list": [5], "nan": math.nan, "[]": [],
        "{}": {"nothing": 1}, "{'arithmetic': 0}": {"arithmetic": 0}, "{'arithmetic': 'x'}": {"arithmetic": "x"},
        "{'arithmetic': True}": {"arithmetic": True}, "{5: 1}": {5: 1}, "an object": object(),
        "{'arithmetic': None, 'piqa': 1}": {"arithmetic": None, "piqa": 1},
    },
    "ids": {
        "[]": [], "[-1]": [-1], "[0, 0]": [0, 0], "[True]": [True], "['x']": ["x"], "[1.5]": [1.5], "[None]": [None],
        "[10**9]": [10**9], "text": "x", "[[0]]": [[0]], "{'nothing': [0]}": {"nothing": [0]},
        "{'arithmetic': 'x'}": {"arithmetic": "x"}, "an object": object(), "[nan]": [math.nan], "a float": 1.5,
    },
    "tasks": {
        "[]": [], "None": None, "5": 5, "[5]": [5], "[None]": [None], "twice": ["arithmetic", "arithmetic"],
        "a list of dicts": [{"prompt": "a", "solution": "b"}],
        "a dict": {"arithmetic": 1}, "['']": [""], "an object": object(), "[['arithmetic']]": [["arithmetic"]],
        "text of a missing file": "x=y.jsonl", "bytes": b"arithmetic",
        "text of nothing": "nothing", "text": "",
    },
    "model": {"None": None, "5": 5, "an object": object(), "''": "", "bytes": b"toy-ouro", "a list": [5],
              "a dict": {}, "long": "m" * 5000, "NUL": "a\0b"},
    "output": {"5": 5, "an object": object(), "a list": ["out"], "''": "", "NUL": "a\0b",
               "long": "o" * 5000},
    "device": {"None": None, "99": 99, "an object": object(), "toaster": "toaster", "meta": "meta", "a list": ["cpu"],
               "''": "", "bytes": b"cpu"},
    "dtype": {"5": 5, "an object": object(), "int8": "int8", "a list": ["float32"], "''": "", "float": float},
    "template": {"a missing file": "nothing.toml", "5": 5, "an object": object(), "a list": ["x"], "NUL": "a\0b"},
    "data_dir": {"5": 5, "an object": object(), "a list": ["x"]},
    "tokenizer": {"nothing": "nothing", "5": 5, "an object": object(), "''": ""},
}  # fmt: skip
LOAD_MODEL: dict[str, dict[str, Any]] = {
    "spec": {**BAD["model"], "a list": ["toy-ouro"]},
    "device": BAD["device"],
    "dtype": BAD["dtype"],
}
LOAD_TASK: dict[str, dict[str, Any]] = {
    "spec": {"None": None, "5": 5, "''": "", "a list": ["arithmetic"], "an object": object(), "nothing": "nothing",
             "bytes": b"arithmetic", "a dict": {"prompt": "a"}, "NUL": "a\0.jsonl", "long": "m" * 5000 + ".jsonl"},
    "limit": {"0": 0, "-1": -1, "1.5": 1.5, "text": "5x", "true": True, "a list": [5], "nan": math.nan},
    "ids": {"[]": [], "[-1]": [-1], "[0, 0]": [0, 0], "['x']": ["x"], "[1.5]": [1.5], "[True]": [True], "a float": 0.5,
            "[10**9]": [10**9], "range(10**12)": range(10**12), "an object": object()},
    "template": {"for an embedded task": "x.toml", "5": 5},
    "data_dir": {"5": 5, "a list": ["x"]},
}  # fmt: skip


def cases() -> Iterator[Case]:
    for parameter, values in BAD.items():
        for name, value in values.items():
            yield call(
                f"measure({parameter}={name})",
                f"no {parameter}",
                lambda p, parameter=parameter, value=value: measure(p, **{parameter: value}),
            )
    yield call(
        "measure(tokens=True) without updates",
        "tokens are rows of updates",
        lambda p: measure(p, transitions=[], depths=[1], tokens=True),
    )
    yield from _load_model()
    yield from _load_task()
    yield from _run()
    yield from _near_misses()


def _load_model() -> Iterator[Case]:
    def load(place: Place, **changes: Any) -> Any:
        from loopscope import load_model

        given = {"spec": place.model, "device": "cpu"} | changes
        return load_model(given.pop("spec"), **given)

    for parameter, values in LOAD_MODEL.items():
        for name, value in values.items():
            yield call(
                f"load_model({parameter}={name})",
                f"no {parameter}",
                lambda p, parameter=parameter, value=value: load(p, **{parameter: value}),
            )
    for name, value in {"text": "x", "1.5": 1.5, "None": None, "nan": math.nan}.items():
        yield call(
            f"load_model(model_args={{'random_weights': True, 'seed': {name}}})",
            "no seed",
            lambda p, value=value: load(p, model_args={"random_weights": True, "seed": value}),
        )
    for name, value in {"5": 5, "None": None, "''": "", "nothing": "nothing"}.items():
        yield call(f"load_tokenizer({name})", "no tokenizer there", lambda p, value=value: tokenizer(value))


def tokenizer(spec: Any) -> Any:
    from loopscope import load_tokenizer

    return load_tokenizer(spec)


def _load_task() -> Iterator[Case]:
    def load(**changes: Any) -> Any:
        from loopscope import load_task

        given = {"spec": "arithmetic", "limit": 1} | changes
        if "ids" in changes:
            given.pop("limit")
        return load_task(given.pop("spec"), **given)

    for parameter, values in LOAD_TASK.items():
        for name, value in values.items():
            yield call(
                f"load_task({parameter}={name})",
                f"no {parameter}",
                lambda p, parameter=parameter, value=value: load(**{parameter: value}),
            )


def _run() -> Iterator[Case]:
    def opened(path: Any) -> Any:
        from loopscope import Run

        return Run(path)

    for name, value in {"None": None, "5": 5, "''": "", "nothing": "nothing", "an object": object(), "NUL": "a\0b",
                        "a list": ["x"], "long": "r" * 5000, "bytes": b"x"}.items():  # fmt: skip
        yield call(f"Run({name})", "no run", lambda p, value=value: opened(value))
    for name, value in {"nothing": "nothing", "None": None, "5": 5, "''": "", "a list": ["mechanism"], "$": "$x$",
                        "of level full": "refined"}.items():  # fmt: skip
        yield call(f"Run.table({name})", "no such table", lambda p, value=value: opened(p.run).table(value))
        yield call(f"Run.figure({name})", "no such figure", lambda p, value=value: opened(p.run).figure(value))
        yield call(f"Run.read({name})", "no such table", lambda p, value=value: opened(p.run).read(value))
    yield call("Run.paths of a run without", "not measured", lambda p: opened(p.run).paths)
    for name, value in {"resamples=0": {"resamples": 0}, "resamples=1.5": {"resamples": 1.5}, "level=1": {"level": 1},
                        "level=nan": {"level": math.nan}, "seed=x": {"seed": "x"}, "resamples=text": {"resamples": "9"},
                        "level=text": {"level": "0.95"}, "seed=-1": {"seed": -1}}.items():  # fmt: skip
        yield call(
            f"Run.table(bootstrap with {name})",
            "no resampling",
            lambda p, value=value: opened(p.run).table("mechanism", bootstrap(**value)),
        )
    yield call("Run.table(bootstrap=5)", "no resampling", lambda p: opened(p.run).table("mechanism", 5))
    for name, path, why in (
        ("without an ending", lambda p: "x", "no kind of figure"),
        ("of another kind", lambda p: "x.doc", "no kind of figure"),
        ("below a file", lambda p: f"{p.file('f', '')}/x.pdf", "no folder"),
        ("into a device", lambda p: renamed(p, device(p, 3)), "a device is no file"),
        ("into a FIFO", lambda p: renamed(p, fifo(p)), "a FIFO is no file"),
    ):
        yield call(f"figure.save() {name}", why, lambda p, path=path: saved(p, path(p)))
    for name, runs in {"[]": [], "None": None, "5": 5, "['nothing']": ["nothing"], "an object": object()}.items():
        yield call(f"table('mechanism', {name})", "no runs", lambda p, runs=runs: study(runs))
        yield call(f"write_report({name})", "no runs", lambda p, runs=runs: report(runs, p.here / "r.html"))
    for name, output in {"None": None, "5": 5, "a folder": ".", "''": "", "NUL": "a\0.html"}.items():
        yield call(f"write_report(output={name})", "no file", lambda p, output=output: report([p.run], output))


def bootstrap(**changes: Any) -> Any:
    from loopscope.stats import Bootstrap

    return Bootstrap(**changes)


def renamed(place: Place, path: str) -> str:
    """The same with the name of a figure."""
    return str(Path(path).rename(place.here / "figure.pdf"))


def saved(place: Place, path: str) -> Any:
    from loopscope import Run

    return Run(place.run).figure("direction-progress").save(path)


def study(runs: Any) -> Any:
    from loopscope.studies import table

    return table("mechanism", runs)


def report(runs: Any, output: Any) -> Any:
    from loopscope.report import write_report

    return write_report(runs, output)


def _near_misses() -> Iterator[Case]:
    import numpy as np

    good: dict[str, dict[str, Any]] = {
        "transitions=range(1, 3)": {"transitions": range(1, 3)},
        "transitions={2, 1}": {"transitions": {2, 1}},
        "transitions=np.array([1])": {"transitions": np.array([1])},
        "transitions=iter([1])": {"transitions": iter([1])},
        "depths=[0]": {"transitions": [], "depths": [0]},
        "limit={'arithmetic': 1}": {"limit": {"arithmetic": 1}},
        "limit=None, ids=[0]": {"limit": None, "ids": [0]},
        "ids={'arithmetic': [0]}": {"limit": None, "ids": {"arithmetic": [0]}},
        "ids=range(2)": {"limit": None, "ids": range(2)},
        "limit=np.int64(1)": {"limit": np.int64(1)},
        "tasks=('arithmetic',)": {"tasks": ("arithmetic",)},
        "batch_size=2": {"batch_size": 2},
        "batch_size='2'": {"batch_size": "2"},
        "model_args=exit_threshold=1": {"model_args": "exit_threshold=1"},
        "protocol=loopscope:scalar_checks=0": {"protocol": "loopscope:scalar_checks=0"},
    }
    for name, changes in good.items():
        yield call(
            f"accepted: measure({name})",
            "as documented",
            lambda p, changes=changes: measure(p, **changes),
            accepted=True,
        )
    yield call("accepted: measure(model=Path)", "a folder", lambda p: measure(p, model=p.model), accepted=True)
    yield call(
        "accepted: measure(output=text)", "a folder", lambda p: measure(p, output=str(p.here / "o")), accepted=True
    )
    yield call(
        "accepted: measure of a file",
        "a data file",
        lambda p: measure(p, tasks=[f"mine={p.file('my.jsonl', OPTIONS)}"]),
        accepted=True,
    )
    yield call("accepted: Run(Path)", "a folder", lambda p: __import__("loopscope").Run(Path(p.run)), accepted=True)
    yield call("accepted: Run.figure().save()", "a file", lambda p: saved(p, "x.png"), accepted=True)
    yield call("accepted: table of two runs", "side by side", lambda p: study([p.run, str(p.run)]), accepted=True)
    yield call("accepted: Bootstrap(resamples=1)", "the least", lambda p: bootstrap(resamples=1), accepted=True)
