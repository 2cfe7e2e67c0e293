"""Short trainings of the embedded models, whose weights are compared in research/fitted-scale.md.

    python -m research.experiments.short_training toy-ouro --seed 1 --minutes 1.4 --output trained/seed1

One stretch of the recipe's last mixture, with steps of fewer tokens and no training of the exit gate: a minute or two
on one GPU, also with several trainings beside each other, reach the losses at which updates beyond the trained depth
do harm. Blocks are not compiled, which takes longer than it saves here. The minutes begin with the process.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from research.toys.recipe import RECIPES

STARTED = time.monotonic()


def main(arguments: list[str] | None = None) -> None:
    """Parse the flags and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(RECIPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1.4, help="from the start of this process to the last step")
    parser.add_argument("--steps", type=int, help="stop after so many steps, if that is earlier")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, required=True)
    flags = parser.parse_args(arguments)
    # Imported here: the processes that write problems import this module, and need no torch.
    import torch
    from tokenizers import Tokenizer

    from loopscope.models.registry import EMBEDDED
    from research.toys.train import train

    recipe = RECIPES[flags.name]
    mixture = replace(recipe.mixture, batch_tokens=flags.batch_tokens, shard_problems=1024)
    recipe = replace(recipe, earlier=(), gate_steps=0, mixture=mixture, decay_from=0.45)
    torch.set_float32_matmul_precision("high")
    if flags.device != "cpu" and torch.cuda.is_available():
        torch.zeros(1, device="cuda")  # the device's start counts, too
    train(
        recipe, flags.output, minutes=flags.minutes - (time.monotonic() - STARTED) / 60, steps=flags.steps,
        seed=flags.seed, device=flags.device, workers=flags.workers, compiled=False,
        tokenizer=Tokenizer.from_file(str(EMBEDDED / "toy-ouro/tokenizer.json")),
    )  # fmt: skip


if __name__ == "__main__":
    main()
