"""`python -m loopscope.toys NAME`: trains an embedded model; what `loopscope train-toy` calls."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loopscope.errors import LoopscopeError, command_line_words


def main(arguments: list[str] | None = None) -> int:
    """Parses the flags and trains."""
    parser = argparse.ArgumentParser(prog="python -m loopscope.toys", description=__doc__)
    parser.add_argument("name", help="toy-ouro or toy-huginn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--minutes", type=float, help="training time, resumed parts included (default: the recipe's)")
    parser.add_argument("--output", type=Path, default=None, help="checkpoint folder (default: runs/NAME)")
    parser.add_argument("--workers", type=int, default=None, help="processes that write problems")
    parser.add_argument("--problems", type=int, default=500, help="held-out problems to solve at the end")
    parser.add_argument("--save-every", type=int, default=None, help="steps between checkpoints that are kept")
    flags = parser.parse_args(arguments)
    from loopscope.toys.train_toy import train_toy

    try:
        with command_line_words():
            train_toy(
                flags.name,
                seed=flags.seed,
                device=flags.device,
                minutes=flags.minutes,
                output=flags.output,
                workers=flags.workers,
                problems=flags.problems,
                save_every=flags.save_every,
            )
    except LoopscopeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
