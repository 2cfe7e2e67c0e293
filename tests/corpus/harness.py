"""One entry of the corpus: something a user may give, why it is wrong (or right), and how to give it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from place import Place

Argument = str | Callable[[Place], str]


@dataclass(frozen=True)
class Outcome:
    """What came of a case: `line` (refused in one line), `accepted`, or what must never be."""

    kind: str
    text: str = ""
    output: str = ""
    """What a command wrote to stdout."""


@dataclass(frozen=True)
class Case:
    """A name, what is wrong with the input (or why it is fine), and the input itself."""

    name: str
    why: str
    act: Callable[[Place], Outcome]
    accepted: bool = False
    command: Callable[[Place], list[str]] | None = None
    """The command's arguments, where the case is a command and nothing else."""


def command(name: str, why: str, *arguments: Argument, accepted: bool = False, env: Mapping[str, str] = {}) -> Case:
    """A command line; arguments that depend on the place are functions of it."""

    def arguments_at(place: Place) -> list[str]:
        return [argument if isinstance(argument, str) else argument(place) for argument in arguments]

    def act(place: Place) -> Outcome:
        with environment(env):
            return run_command(arguments_at(place))

    return Case(name, why, act, accepted, None if env else arguments_at)


def call(name: str, why: str, function: Callable[[Place], Any], *, accepted: bool = False) -> Case:
    """A call in Python."""

    def act(place: Place) -> Outcome:
        return run_call(lambda: function(place))

    return Case(name, why, act, accepted)


def run_command(arguments: Sequence[str]) -> Outcome:
    """The command line in this process, as its entry point runs it."""
    from loopscope.cli import main

    out, err = stream(), stream()
    before = sys.argv
    sys.argv = ["loopscope", *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
        code: object = 0
    except SystemExit as left:
        code = left.code
    except BaseException as error:
        return Outcome("traceback", f"{type(error).__name__}: {error}"[:300])
    finally:
        sys.argv = before
    err.flush()
    said = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    if code in (0, None):
        return Outcome("accepted", said[:300], out.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return judge_refusal(code, said)


def stream() -> io.TextIOWrapper:
    """What a process has for stdout or stderr, in memory."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def judge_refusal(code: object, said: str) -> Outcome:
    """Exit code 2 and one line of ours on stderr, or what it is instead."""
    if "Traceback (most recent call last)" in said:
        return Outcome("traceback", said[-300:])
    if code != 2:
        return Outcome(f"exit code {code}", said[:300])
    lines = said.splitlines()
    if len(lines) != 1 or not lines[0].startswith("loopscope: "):
        return Outcome(f"{len(lines)} lines", said[:600])
    return Outcome("line", lines[0])


def run_call(function: Callable[[], Any]) -> Outcome:
    """A call: refused by a LoopscopeError of one line, accepted, or broken."""
    from loopscope import LoopscopeError

    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            function()
    except LoopscopeError as error:
        text = str(error)
        return Outcome("line", text) if text.strip() and "\n" not in text else Outcome("not one line", text[:600])
    except BaseException as error:
        return Outcome("traceback", f"{type(error).__name__}: {error}"[:300])
    return Outcome("accepted")


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
