"""The command line: flags to calls. Heavy imports happen inside the commands."""


def main() -> None:
    """Entry point of the `loopscope` command."""
    from loopscope.cli import commands  # noqa: F401 - registers the commands
    from loopscope.cli.app import run

    run()
