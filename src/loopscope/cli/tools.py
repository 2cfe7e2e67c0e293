"""Tools around the measuring: `loopscope convert`, `loopscope bench` and `loopscope train-toy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loopscope.cli.flags import Device, flag
from loopscope.errors import LoopscopeError


def convert(
    source: Annotated[str, typer.Argument(help="Folder, file or hub name with pickled weights (.bin, .pt).")],
    folder: Annotated[str, typer.Argument(help="Folder to write, with config.json and the tokenizer's files.")],
) -> None:
    """Turn pickled weights into safetensors, in a process of its own."""
    from loopscope.models.checkpoint.convert import convert as write

    done = write(source, folder)
    beside = f"; left out: {', '.join(done.left_out)}" if done.left_out else ""
    print(f"{done.folder}: {done.tensors} tensors, {done.bytes / 1e6:.1f} MB, from {', '.join(done.files)}{beside}")


def bench(
    device: Annotated[str, flag("--device", "auto, cpu or cuda.")] = "auto",
    rows: Annotated[str, flag("--rows", "Only these, comma separated, e.g. geometry,memory.")] = "",
    quick: Annotated[bool, flag("--quick", "Small sizes, to see that everything runs.")] = False,
    output: Annotated[str | None, flag("--output", "JSON file.")] = None,
    tokenizer: Annotated[str | None, flag("--tokenizer", "Folder with Ouro's tokenizer, for rows of a pass.")] = None,
    data_dir: Annotated[str | None, flag("--data-dir", "Folder with the benchmarks, for rows of a pass.")] = None,
) -> None:
    """Time, memory and accuracy on this machine, each beside its reference."""
    from loopscope.bench.benchmark import run_bench

    result = run_bench(device, rows, quick=quick, output=output, tokenizer=tokenizer, data_dir=data_dir)
    print(result.text())
    if result.failed:
        raise LoopscopeError(f"these rows broke: {', '.join(result.failed)}; see the traceback above")


def train_toy(
    name: Annotated[str, typer.Argument(help="toy-ouro or toy-huginn.")],
    seed: Annotated[int, flag("--seed", "Seed of weights and data.")] = 0,
    device: Device = "auto",
    minutes: Annotated[
        float | None, flag("--minutes", "Minutes of training, if not the recipe's; more of them train further.")
    ] = None,
    output: Annotated[str | None, flag("--output", "Folder for the checkpoint.")] = None,
    save_every: Annotated[
        int | None, flag("--save-every", "Steps between checkpoints that are kept, OUTPUT/checkpoints/step-N.")
    ] = None,
) -> None:
    """Rebuild an embedded model from nothing."""
    from loopscope.toys.train_toy import train_toy as train

    folder = None if output is None else Path(output)
    train(name, seed=seed, device=device, minutes=minutes, output=folder, save_every=save_every)
