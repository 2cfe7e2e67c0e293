"""`loopscope train-toy`: rebuilds an embedded model from nothing."""

from __future__ import annotations

from pathlib import Path


def train_toy(
    name: str, *, seed: int = 0, device: str = "auto", minutes: float = 8.0, output: Path | None = None
) -> None:
    """Trains toy-ouro or toy-huginn; the same command goes on where an interrupted one stopped."""
    from loopscope.toys.run import train_toy as train

    train(name, seed=seed, device=device, minutes=minutes, output=output)
