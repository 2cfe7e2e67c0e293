"""Settings of `measure` as flags, variables, YAML and arguments; the other commands and their flags."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from harness import GOOD, Case, call, command, measure, measuring, model_of, shown

MANY = "1" * 5000
LONG = "m" * 5000
RANGES = ["4 5", "4;5", "-1", "x", "1.5", "1e3", "0x4", "1_0", "+4", "1,,2", ",", "1,", " ", "nan", "None", "[4]", "1-",
          "-", "--4", "4-2", "1-2-3", "1:3", "1..3", "4→5", "4\n5", "½", "²", "\u00a04 4", "0b1", MANY,
          "99999999999999999999", "0-9999999999,4", f"1-{MANY}"]  # fmt: skip
LISTS = [b"4", 1.5, [4.5], True, [True], [None], [[4]], ["x"], [-1], [math.nan], [10**30], range(10**10), {4: 5},
         object()]  # fmt: skip
NOT_NAMES = [5, object(), ["x"], "a\0b"]
# Values of each setting that are refused: texts as a flag, others as an argument.
BAD: dict[str, list[Any]] = {
    "transitions": [*RANGES, *LISTS, "1-1000000000", "4.0", "1>", ">3", "3>1", "2>2", "1>2>3"],
    "depths": [*RANGES, *LISTS],
    "ids": [*(text for text in RANGES if text != "1:3"), *LISTS, "", [], "0,0", "0-5,3", "999999999", [0, 0],
            {"nothing": [0]}, {"arithmetic": "x"}],
    "limit": ["0", "-1", "1 0", "x", "1.5", "1e2", "0x10", "arithmetic=", "=5", "arithmetic=0", "arithmetic=x",
              "arithmetic=1,arithmetic=2", "arithmetic=1,5", "5,6", "piqa=5", ",", " ", MANY, 1.5, True, [5], math.nan,
              {"nothing": 1}, {"arithmetic": 0}, {"arithmetic": True}, {5: 1}, object()],
    "tasks": ["arithmetik", " ", ",", "arithmetic:testt", "arithmetic,arithmetic", "nothing.jsonl", "mine=", "=x.jsonl",
              "arithmetic=x.jsonl", "a/b", LONG, f"{LONG}.jsonl", "arithmetic::test", ":test", "gsm8k=x.jsonl",
              "lm_eval:", "lm_eval:nothing.yaml", "a\0.jsonl", [], None, 5, [5], [None], [""], {"arithmetic": 1},
              [{"prompt": "a", "solution": "b"}], object(), b"arithmetic"],
    "model": ["toy-uoro", LONG, "no/such/folder", "./nothing", " ", "", "toy-ouro@main", "org/name/extra", "..", "a\0b",
              "http://example.org/model", "~nobody-at-all/model", "toy-ouro:inside=3:inside=3", "nothing.py:build",
              "nothing:build", "mine.py:", None, 5, object(), b"toy-ouro", {}],
    "model_args": ["inside", "=3", "inside=", "inside=x", "inside=-1", "inside=99", "nothing=1", "inside=0,inside=0",
                   "random_weights=perhaps", "random_weights=true,seed=abc", 5, {"random_weights": True, "seed": 1.5}],
    "level": ["ful", "QUICKEST", "grid,full", "1", " ", None, 5],
    "long": ["cut", "skip,error", "1"],
    "engine": ["dask", "Local-ish"],
    "dtype": ["float12", "int8", "complex64", "torch", "bool", 5, ["float32"], float],
    "device": ["toaster", "meta", "cuda:99", "cpu:x", "gpu", "cuda:-1", "xla", None, 99, object(), ["cpu"]],
    "batch_size": ["many", "0", "-2", "1.5", "paper2", "1e2", MANY, "auto,8", " "],
    "workers": ["-1", "0", "x", "1.5", "2"],
    "scales_to": ["x", "nan", "inf", "-1", "0", "1", "1e9", True],
    "lens": ["-1", "x", "101", "1.5"],
    "num_fewshot": ["-1", "x", "1.5", "1001", "", True],
    "initial_state": ["x", "paper "],
    "protocol": ["x", "paper:", "loopscope:x=1", "loopscope:unit_size=0", "loopscope:unit_size=x", 5,
                 "loopscope:fewshot_split=train", "loopscope:unit_size=1:unit_size=2"],
    "template": ["nothing.toml", ".", LONG, *NOT_NAMES],
    "tokenizer": ["nothing", LONG, "./nothing", "nothing.json", "nothing.model", 5, object(), ["a"], len, b"x"],
    "data_dir": ["nothing", LONG, *NOT_NAMES],
    "output": ["", LONG, "/".join(["d" * 200] * 30), "/proc/loopscope-run", *NOT_NAMES],
}  # fmt: skip
WITH = {"ids": {"limit": None}, "data_dir": {"tasks": "gsm8k"}}
"""What else a setting's cases need."""
RIGHT: dict[str, list[Any]] = {
    "transitions": [" 1 , 2 ", "2-2", "1>3", range(1, 3), {2, 1}, iter([1])],
    "depths": ["0", [0]],
    "limit": ["arithmetic=1", {"arithmetic": 1}],
    "ids": ["3,1", "0, 2-3", range(2), {"arithmetic": [0]}],
    "dtype": ["fp32", "bf16"],
    "model_args": ["exit_threshold=1", "random_weights=true,seed=7"],
    "batch_size": ["3", 2],
    "protocol": ["loopscope:unit_size=1", "loopscope:scalar_checks=0"],
    "tasks": ["arithmetic ,", "ARITHMETIC_MC", "arithmetic:val", ("arithmetic",)],
    "output": ["a [1] *b?", "läufe/größe $x$ – 数"],
    "num_fewshot": ["0", 0],
}
YAML: list[str | bytes] = [
    "limit: " + "[" * 3000 + "]" * 3000, "limit: " + "{a: " * 3000 + "1" + "}" * 3000, "- limit\n- 1\n", "limit\n",
    "limit: [1\n", "limit:\n\t- 1\n", "limits: 1\n", "limit: !!python/object/apply:os.system ['true']\n",
    "limit: 1\n---\nlimit: 2\n", "limit: 1\nlimit: 2\n", "batch-size: 1\nbatch_size: 2\n", "transitions: 1:30\n",
    "batch_size: true\n", "transitions: [1, null]\n", "transitions: [[1], [2]]\n", "batch_size: {a: 1}\n",
    "tasks: [{a: 1}]\n", "limit: 2001-01-01\n", "limit: !!binary aGVsbG8=\n", "transitions: !!set {1, 2}\n",
    "tokens: 2\n", "? [limit]\n: 1\n", "1: 2\n", "<<: 5\n", "config: other.yaml\n", "batch_size: 0o17\n",
    b"level: qu\x07ick\n", f"batch_size: {MANY}\n",
]  # fmt: skip
GOOD_YAML = ["limit: 1\ntransitions: [1, 2]\ntasks: [arithmetic]\n", "limit: 1\ntransitions: 1-2\n",
             "# mine\nlimit: 1\nbatch-size: 2\ntransitions: 1\ntokens: true\n"]  # fmt: skip


def cases() -> Iterator[Case]:
    for values, wanted in ((BAD, ("line",)), (RIGHT, GOOD)):
        for name, several in values.items():
            for value in several:
                yield _setting(name, value, wanted)
    for name in ("limit", "level", "device", "batch_size", "tokens", "share_context"):
        text = {"tokens": "perhaps", "share_context": "2"}.get(name) or BAD[name][1]
        variable = {f"LOOPSCOPE_{name.upper()}": text}
        yield command(f"{variable}", *measuring(**{name: None}), model_of, env=variable)
    yield command("LOOPSCOPE_CONFIG of nothing", *measuring(), model_of, env={"LOOPSCOPE_CONFIG": "nothing.yaml"})
    yield command(
        "variables", *measuring(limit=None), model_of, wanted=GOOD,
        env={"LOOPSCOPE_LIMIT": "1", "LOOPSCOPE_TOKENS": "1"},
    )  # fmt: skip
    yield from _yaml()
    yield from _together()
    yield from _commands()


def _setting(name: str, value: Any, wanted: tuple[str, ...]) -> Case:
    title = f"{name}={shown(value)}"
    more: dict[str, Any] = WITH.get(name, {})
    if name == "depths":
        more = {"transitions": None if isinstance(value, str) else []}
    if isinstance(value, str):
        model = () if name == "model" else (model_of,)
        return command(title, *measuring(**more | {name: value}), *model, wanted=wanted)
    return call(f"measure({title})", lambda p: measure(p, **more | {name: value}), wanted)


def _yaml() -> Iterator[Case]:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for texts, wanted in (([*YAML, bomb + "limit: *i\n"], ("line",)), (GOOD_YAML, GOOD)):
        for text in texts:
            left_out = {flag: None for flag in ("transitions", "limit", "level", "tasks") if f"{flag}:" in str(text)}
            yield command(
                f"--config of {shown(text)}", *measuring(**left_out), model_of,
                lambda p, text=text: f"--config={p.file('flags.yaml', text)}", wanted=wanted,
            )  # fmt: skip


def _together() -> Iterator[Case]:
    """Settings that are right alone."""
    for flags in (
        "--paths", "--batch-size=paper --protocol=loopscope:unit_size=3", "--batch-size=paper --share-context",
        "--num-fewshot=1 --protocol=loopscope:fewshot_split=x", "--apply-chat-template", "stray", "--tokens=yes",
        "--limit", "--modle=toy-ouro", "--fail-if=x", "--model=nothing",
    ):  # fmt: skip
        yield command(f"measure {flags}", *measuring(), model_of, *flags.split())
    for flags in ("--depths=1 --tokens", "--depths=1 --certify", "--depths=0 --trace"):
        yield command(f"measure without updates {flags}", *measuring(transitions=None), model_of, *flags.split())
    yield command("measure without tasks", *measuring(tasks=None), model_of)
    yield command("measure without a model", *measuring())
    yield call("measure(nothing=1)", lambda p: measure(p, nothing=1))
    yield command("--batch_size", *measuring(), model_of, "--batch_size=2", wanted=GOOD)


COMMANDS = [
    "mesure", "--versio", "TABLES", "\x07", "models toy-ouro", "studies --json", "figures RUN", "check nothing",
    *(f"tables RUN --name={name}" for name in ("nothing", LONG, "$x$", "../mechanism", "a\0", "refined-optima", "")),
    *(f"{name} RUN --format=xml" for name in ("tables", "compare", "figures", "control", "diff RUN")),
    *(f"figures RUN --output={name}" for name in (LONG, "RUN/manifest.json/x")), "report RUN --output=RUN",
    *(f"report RUN --output={name}" for name in (LONG, "/proc/x.html", "RUN/manifest.json/x")),
    *(f"verify RUN --{flag}" for flag in ("device=meta", "model=nothing", "tasks=mine=nothing.jsonl")),
    *(f"control RUN --{flag}" for flag in
      ("target-cost=nan", "target-cost=-1", "target-cost=x", "check-cost=inf",
       "check-cost=-1", "outside-cost=nan", "tier=rerun", "policy=nothing.py:Mine", "policy=nothing.safetensors",
       "policy=", "model=nothing", "output=x.doc", "heads=/dev/null")),
    *(f"diff RUN RUN --fail-if={condition}" for condition in
      ("share>1e999", "share>x", "share>", "nothing>1", "share~1", "share>nan", "")),
    *(f"diff RUN RUN --{flag}" for flag in ("tasks=nothing", "transitions=9", "transitions=x")),
    *(f"reproduce --output=out --{flag}" for flag in ("limit=x", "output=", "models=nothing", "nothing")),
    *(f"demo --output=out --{flag}" for flag in ("questions=-1", "questions=x", "progress=fancy", "output=/dev/null")),
    *(f"check toy-ouro --{flag}" for flag in ("device=meta", "dtype=int8", "model-args=x")),
]  # fmt: skip
"""Refused; RUN is a sound run."""
GOOD_COMMANDS = [
    "models", "tasks", "studies", "--version", "--help", "tables RUN --name=Failure_Shares", "verify RUN --no-replay",
    "diff RUN RUN --fail-if=share>0.5", "tables RUN --format=json --name=mechanism",
]  # fmt: skip


def _commands() -> Iterator[Case]:
    for several, wanted in ((COMMANDS, ("line",)), (GOOD_COMMANDS, GOOD)):
        for number, line in enumerate(several):
            words = [lambda p, word=word: word.replace("RUN", str(p.run)) for word in line.split(" ")]
            yield command(f"loopscope {number} {shown(line)}", *words, wanted=wanted)
    more = {"figures": ["--output=out"], "report": ["--output=r.html"], "diff": [lambda p: p.run], "push": ["a/b"]}
    runs: dict[str, Any] = {"nothing": "nothing", "''": "", "a long name": LONG, "a folder": lambda p: p.here,
                            "a file": lambda p: p.file("f", "x"), "a checkpoint": lambda p: p.model}  # fmt: skip
    for name in ("tables", "figures", "compare", "report", "verify", "control", "diff", "push"):
        for what, given in runs.items():
            yield command(f"{name} of {what}", name, given, *more.get(name, []))
        yield command(f"{name} without a run", name)
        yield command(f"{name} --no-such-flag", name, lambda p: p.run, *more.get(name, []), "--no-such-flag")
