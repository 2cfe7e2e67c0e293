"""How many reference prediction positions GSM8K test has, by what is counted and how it is encoded.

    python docs/figures/reference_positions.py --data-dir DATA --tokenizer FOLDER

The paper reports 167,606 for Ouro's tokenizer (Appendix "Token-Level Audit of Early Recurrent Updates").
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from loopscope.models.tokenizer import Tokenizer
from loopscope.tasks import Row, encode_pair, load_task
from loopscope.tasks.encoding import Split

PAPER = 167_606


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_folder(arguments.tokenizer)
    task = load_task("gsm8k", data_dir=arguments.data_dir)
    print(f"GSM8K test, {len(task)} questions; tokenizer.json {tokenizer.sha256[:12]}; the paper: {PAPER:,}\n")
    print("| what is scored | encoded | after | positions | off by |\n|---|---|---|---:|---:|")
    for scored, prompt, split, count in counts(tokenizer, task.rows):
        print(f"| {scored} | {split} | `{prompt!r:.40}` | {count:,} | {count - PAPER:+,} |")


def counts(tokenizer: Tokenizer, rows: tuple[Row, ...]) -> Iterator[tuple[str, str, Split, int]]:
    """What is scored, what stands before it, how both are encoded, and the number of positions."""
    end = tokenizer.decode(tokenizer.eos_ids[:1])
    solutions: dict[str, Callable[[str], str]] = {
        "the answer as published": lambda text: text,
        "blank + answer": lambda text: " " + text,
        "line end + answer": lambda text: "\n" + text,
        "answer + line end": lambda text: text + "\n",
        "answer + end of text": lambda text: text + end,
        "answer without calculator marks": lambda text: re.sub("<<.*?>>", "", text),
        "answer without its #### line": lambda text: text.partition("\n####")[0],
    }
    for scored, change in solutions.items():
        yield scored, "…Answer:\n", "separate", count(tokenizer, rows, "Answer:\n", change, "separate")
    for ending, scored in [
        ("Answer:\n", "the answer as published"),
        ("Answer:", "the answer as published"),
        ("Answer:", "blank + answer"),
        ("Answer:\n\n", "the answer as published"),
        ("Answer:", "line end + answer"),
        ("Answer:", "answer + end of text"),
    ]:
        yield scored, f"…{ending}", "joint", count(tokenizer, rows, ending, solutions[scored], "joint")


def count(tokenizer: Tokenizer, rows: tuple[Row, ...], ending: str, change: Callable[[str], str], split: Split) -> int:
    """Positions of all rows with a prompt of this ending and solutions changed in this way."""
    total = 0
    for row in rows:
        context = row.context.removesuffix("Answer:\n") + ending
        total += len(encode_pair(tokenizer, context, change(row.continuations[0]), split).positions)
    return total


if __name__ == "__main__":
    main()
