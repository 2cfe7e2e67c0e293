"""The command line: flags to calls. Heavy imports happen inside the commands."""


def main() -> None:
    """Entry point of the `loopscope` command."""
    from loopscope.cli._app import run

    run()
