"""Flags that several commands share; each can also be set by LOOPSCOPE_FLAG_NAME."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from loopscope.cli._app import ConfigFlag


def flag(name: str, help: str, **rest: Any) -> Any:
    """A typer option with its environment variable."""
    variable = "LOOPSCOPE_" + name.removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, help=help, envvar=variable, show_envvar=False, **rest)


Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)]
Name = Annotated[str | None, flag("--name", "Only this one; `loopscope studies` lists them.")]
TableFormat = Annotated[str, flag("--format", "text, markdown, latex, csv or json.")]
Json = Annotated[bool, flag("--json", "One JSON array instead of text.")]
Device = Annotated[str, flag("--device", "cpu, cuda, cuda:1, mps or auto.")]

__all__ = ["ConfigFlag", "Device", "Json", "Name", "Runs", "TableFormat", "flag"]
