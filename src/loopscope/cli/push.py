"""`loopscope push RUN owner/name`: a run as a data set of the Hugging Face hub."""

from __future__ import annotations

from typing import Annotated

import typer

from loopscope.cli.flags import flag


def push(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The data set; it is made if it is new.")],
    public: Annotated[bool, flag("--public", "Anybody can see it; by default it is private.")] = False,
) -> None:
    """Upload a run to the Hugging Face hub, without paths and command lines; `ls.open_run("hf://…")` reads it."""
    from loopscope.hub import push_to_hub
    from loopscope.store import StoredRun

    typer.echo(push_to_hub(StoredRun(run), repository, private=not public))
    typer.echo(f'Next: loopscope.open_run("hf://{repository}")')
