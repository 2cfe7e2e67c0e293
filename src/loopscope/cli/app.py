"""The application: its commands, and how a command ends.

`--flag-name` and `--flag_name` both work. A user's mistake is one line and exit code 2; bugs keep their traceback.
Ctrl-C, SIGTERM and SIGHUP end a command in the same way, with the codes 130, 143 and 129.
"""

from __future__ import annotations

import difflib
import errno
import functools
import inspect
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

from loopscope.errors import LoopscopeError, UserCodeError, command_line_words

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "Begin": {
        "demo": ("measure", "A model and texts that ship along: a finding and its report."),
        "measure": ("measure", "Measure tasks with a looped model, into a run directory."),
    },
    "Read runs": {
        "tables": ("runs", "The paper's tables."),
        "figures": ("runs", "The paper's figures."),
        "compare": ("runs", "The paper's published numbers next to those of runs."),
        "report": ("runs", "One self-contained interactive page."),
        "diff": ("runs", "Two of your runs on the same questions; exit code for CI."),
        "verify": ("runs", "Check a run's files, and measure a sample of it again."),
    },
    "What there is": {
        "models": ("listing", "The models, with sizes and revisions."),
        "tasks": ("listing", "The tasks."),
        "studies": ("runs", "The tables and figures, and what each needs."),
    },
    "Go further": {
        "check": ("measure", "Try a model on a small batch before measuring it."),
        "reproduce": ("measure", "The paper's runs, tables and figures in one command."),
        "control": ("runs", "When to stop and how far to step, at equal cost."),
        "lm-eval": ("measure", "lm-evaluation-harness with a looped model."),
        "push": ("runs", "A run as a (private) data set of the Hugging Face hub."),
    },
}
"""By heading, the module that has a command, and what `loopscope --help` says of it."""

# Newer typer carries its own copy of click, older typer uses the package: both agree on typer.BadParameter's ancestors.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
_ClickException: type[Exception] = _UsageError.__bases__[0]
_INTERRUPTED = 130
_RESUMED = ("demo", "measure", "reproduce")
"""Commands that continue a run which was interrupted."""
_LONGEST_LINE = 1_000
"""Characters of an error's line; a longer one (a name of thousands of characters) loses its middle."""
_OF_THE_FILE_SYSTEM = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENXIO, errno.ESTALE),
}
"""What a disk, a path or a permission can do wrong; every other OSError is a bug and keeps its traceback."""
_SECONDS_TO_END = 5.0
"""How long after a signal further ones are not heeded."""


class Commands(typer.core.TyperGroup):
    """The commands by heading; a command's module is imported when the command is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of `loopscope --help`."""
        return [name for commands in COMMANDS.values() for name in commands]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """None where there is no such command."""
        module = next((commands[cmd_name][0] for commands in COMMANDS.values() if cmd_name in commands), None)
        return None if module is None else _command(module, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the words begin with; a slip of the keys is met with the name that was meant."""
        known, given = self.list_commands(ctx), args[0].replace("_", "-")
        close = [] if given in known else difflib.get_close_matches(given, known, n=1)
        if close and not ctx.resilient_parsing:
            raise LoopscopeError(f"there is no command {args[0]!r}: did you mean {close[0]}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each heading with its commands."""
        for heading, commands in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<9}", summary) for name, (_, summary) in commands.items()])


class Command(typer.core.TyperCommand):
    """A command that lists its flags by heading."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """The command and its arguments."""
        names = [param.metavar for param in self.get_params(ctx) if param.param_type_name == "argument"]
        formatter.write_usage(ctx.command_path, " ".join(["[OPTIONS]", *filter(None, names)]))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Each heading with its flags, the common ones last."""
        headings: dict[str, list[Any]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                usual = "Arguments" if param.param_type_name == "argument" else "Options"
                heading = getattr(param, "rich_help_panel", None) or usual
                headings.setdefault(heading, []).append((_plain_type(param, record[0]), record[1]))
        for heading in sorted(headings, key="Options".__eq__):
            with formatter.section(heading):
                formatter.write_dl(headings[heading])


def _plain_type(param: Any, written: str) -> str:
    """`--limit <int>` as `--limit N`, `--data-dir <str>` as `--data-dir DIR`, `RUN <str>` as `RUN`."""
    if param.param_type_name == "argument":
        return str(param.metavar or written)
    name = param.name.rpartition("_")[2].upper()
    return re.sub(r"<(\w+).*>$", lambda found: "N" if found[1] in ("int", "float") else name, written)


@functools.cache
def _command(module: str, name: str) -> Any:
    """A command with its flags, read from the signature of the function of its name."""
    function = getattr(import_module(f"loopscope.cli.{module}"), name.replace("-", "_"))
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    others = {"allow_extra_args": True, "ignore_unknown_options": True} if name == "lm-eval" else {}
    about = inspect.cleandoc(function.__doc__ or "").partition("\n\nRaises")[0]
    single.command(name, cls=Command, help=about, context_settings=_CONTEXT | others)(function)
    return typer.main.get_command(single)


_CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 110,
    "token_normalize_func": lambda name: name.replace("_", "-"),
}
app = typer.Typer(
    name="loopscope",
    help="See what each extra loop does inside a looped language model.",
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_CONTEXT,
)


def _show_version(value: bool) -> None:
    if value:
        from loopscope import __version__

        typer.echo(f"loopscope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Flags of the program itself."""
    context.with_resource(command_line_words())


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # An output that cannot hold "→" gets its escape.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(exit_code(given or ["--help"]))


def exit_code(arguments: list[str]) -> int:
    """What the process answers: 0, 2 for the user's mistakes, 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.

    And 1 where a condition of `diff --fail-if` is met.
    """
    with _signals_as_ctrl_c() as received:
        code = _code(arguments)
        if code != _INTERRUPTED:
            return code
        name = f" by {signal.Signals(received[0]).name}" if received else ""
        continues = "; the same command continues where this one stopped" if arguments[0] in _RESUMED else ""
        _write_error(f"loopscope: interrupted{name}{continues}\n")
        return 128 + received[0] if received else code


@contextmanager
def _signals_as_ctrl_c() -> Iterator[list[int]]:
    """SIGTERM and SIGHUP interrupt as Ctrl-C does; gives the list of those that came.

    What the process was started to ignore (`nohup`) or to treat in another way stays so.
    """
    received: list[int] = []
    times: list[float] = []

    def interrupt(number: int, _: object) -> None:
        times.append(time.monotonic())
        received.append(number)
        # A session that ends sends several: the later ones must not disturb how the first one ends the command.
        if times[-1] - times[0] < _SECONDS_TO_END and len(times) > 1:
            return
        raise KeyboardInterrupt

    caught = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        caught = []
    caught = [number for number in caught if signal.getsignal(number) is signal.SIG_DFL]
    for number in caught:
        signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number in caught if not received else ():  # after a signal the process is about to end
            signal.signal(number, signal.SIG_DFL)


@functools.cache
def _group() -> Any:
    """The commands with their flags; typer reads every signature for them, which a process need do only once."""
    return typer.main.get_command(app)


def _code(arguments: list[str]) -> int:
    try:
        _refuse_undecodable(arguments)
        result: Any = _group()(args=arguments, prog_name="loopscope", standalone_mode=False)
        sys.stdout.flush()  # a full disk shows here, not when the interpreter ends
    except UserCodeError as error:
        code = _complain(str(error))
        _write_error(error.detail())
        return code
    except LoopscopeError as error:
        return _complain(str(error))
    except (typer.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except _ClickException as error:
        context = getattr(error, "ctx", None)
        where = f" (see `{context.command_path} --help`)" if context else ""
        return _complain(error.format_message() + where)  # type: ignore[attr-defined]
    except BrokenPipeError:
        _drop_output()  # the reader (`| head`) has what it wanted
        return 0
    except OSError as error:
        if error.errno not in _OF_THE_FILE_SYSTEM:
            raise
        if error.filename is not None:
            return _complain(f"cannot read or write {os.fsdecode(error.filename)}: {error.strerror}")
        _drop_output()
        return _complain(f"cannot write the output: {error.strerror}")
    return result if isinstance(result, int) else 0  # newer typer answers Ctrl-C itself: 130, without a word


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Every name goes into JSON, HTML or Parquet somewhere, and none of them can hold such bytes."""
    variables = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("LOOPSCOPE_")]
    for given in (*arguments, *variables):
        if any("\ud800" <= character <= "\udfff" for character in given):
            raise LoopscopeError(f"{given[:200]!a} is not UTF-8; give names in UTF-8, or rename the file")


def _drop_output() -> None:
    """Point stdout away so that the interpreter's last flush stays silent."""
    with suppress(OSError, ValueError):  # ValueError: captured by a test, without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> int:
    line = "".join(character if character.isprintable() else "\ufffd" for character in " ".join(message.split()))
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} … {line[-_LONGEST_LINE // 2 :]}"
    _write_error(f"loopscope: {line}\n")
    return 2


def _write_error(text: str) -> None:
    """On stderr, if anybody is still there: a terminal that was closed takes no more text."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()
