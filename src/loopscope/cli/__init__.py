"""The command line: a module for each group of commands, flags and bodies together. Bodies import what they need."""


def main() -> None:
    """Entry point of the `loopscope` command."""
    from loopscope.cli.app import run

    run()
