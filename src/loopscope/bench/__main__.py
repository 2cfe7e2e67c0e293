"""`python -m loopscope.bench`: the benchmark where only torch, NumPy and Triton are installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from loopscope.errors import LoopscopeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Flags to one call; 0, 1 where a row broke, 2 for the user's mistakes."""
    from loopscope.bench.benchmark import ROWS, run_bench

    parser = argparse.ArgumentParser(prog="python -m loopscope.bench", description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--rows", default="", help=f"some of {', '.join(ROWS)}; comma separated")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--output", help="JSON file")
    parser.add_argument("--tokenizer", help="folder with Ouro's tokenizer, for rows of a pass")
    parser.add_argument("--data-dir", help="folder with the benchmarks, for rows of a pass")
    options = parser.parse_args(arguments)
    try:
        report = run_bench(**vars(options))
    except LoopscopeError as error:
        print(f"loopscope: {error}", file=sys.stderr)
        return 2
    print(report.text())
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
