"""Where the fitted scale crosses 1: research/fitted-scale.md and the figure of docs/control.md.

    python -m research.experiments.fitted_scale --models toy-ouro trained/seed1 --output research/fitted_scale.json

For every model and task, every depth R and chord k > R: the scale 1 + omega with the best mean utility on train
questions, frozen, its gain on test questions, next to a temperature alone, to the part of the change orthogonal to the
logits, to one more loop and to fixed depths at equal cost. "path" moves the state, "chord" the logits: under an affine
readout both are one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import loopscope as ls
from loopscope.control.act import Questions, costs_of
from loopscope.control.comparison import Curve, fitted_scales
from loopscope.models.walk import Walk
from loopscope.stats import Bootstrap
from loopscope.stats.bootstrap import Estimate
from loopscope.studies.declare import estimated

CPU_ROWS, CPU_BATCH = 64, 16
"""On a CPU: positions whose logits stay in its cache, and sequences of a batch."""


def log_prob(z_NV: Tensor, target_N: Tensor) -> Tensor:
    """Of the references, [N]."""
    return -torch.nn.functional.cross_entropy(z_NV, target_N, reduction="none")


def along_line(z_NV: Tensor, u_NV: Tensor, target_N: Tensor, omega_J: np.ndarray) -> Tensor:
    """Log probabilities of the references at z + omega · u for an even grid, [N, J].

    From one point of the grid to the next every exp(z + omega · u) is multiplied by exp(step · u), in float64.
    """
    found_NJ = torch.empty(len(target_N), len(omega_J), dtype=torch.float64, device=z_NV.device)
    rows = CPU_ROWS if z_NV.device.type == "cpu" else len(target_N)
    for first in range(0, len(target_N), rows):
        here = slice(first, first + rows)
        z_nV, u_nV = (x_NV[here].double() for x_NV in (z_NV, u_NV))
        z_nV, u_nV = (x - x.gather(1, target_N[here, None]) for x in (z_nV, u_nV))  # the reference's own is 0
        powers_nV, step_nV = (z_nV + omega_J[0] * u_nV).exp(), ((omega_J[1] - omega_J[0]) * u_nV).exp()
        for place in range(len(omega_J)):
            found_NJ[here, place] = -powers_nV.sum(dim=1).log()
            powers_nV *= step_nV
    return found_NJ


@torch.no_grad()
def along(
    model: ls.LoopedModel, questions: Questions, loops: int, kinds: tuple[str, ...], longest: int, scale_J: np.ndarray
) -> dict[tuple[str, int | None, int], np.ndarray]:
    """The utility of every question at every scale, [Q, J], by kind, k and R; "depth" has that of the loop itself."""
    affine = getattr(model, "head", None) is not None
    first = 1 if affine else 0
    ends = [(k, depth) for depth in range(first + 1, loops + 1) for k in range(max(first, depth - longest), depth)]
    keys: list[tuple[str, int | None, int]] = [("depth", None, depth) for depth in range(1, loops + 1)]
    keys += [(kind, *pair) for kind in kinds if kind != "temperature" for pair in ends]
    keys += [("temperature", None, depth) for depth in range(1, loops + 1) if "temperature" in kinds]
    held = {key: np.zeros((len(questions), 1 if key[0] == "depth" else len(scale_J))) for key in keys}
    for batch, where_N2, at_N in questions.batches(model.device, CPU_BATCH if model.device.type == "cpu" else 128):
        target_N = torch.from_numpy(questions.target_R[at_N]).to(model.device)
        walk, states, logits = Walk.of(model, batch), {}, {}
        for depth in range(loops + 1):
            walk = walk.to(depth)
            states[depth], logits[depth] = walk.state, walk.read(where_N2).float()
        for key in keys:
            kind, k, depth = key
            z_NV = logits[depth]
            if kind == "depth":
                held[key][at_N, 0] = log_prob(z_NV, target_N).cpu().numpy()
                continue
            u_NV = z_NV if k is None else z_NV - logits[k]
            if kind == "orthogonal":
                centred_NV, u_NV = (x - x.mean(-1, keepdim=True) for x in (z_NV, u_NV))
                share_N = (u_NV * centred_NV).sum(-1) / centred_NV.square().sum(-1).clamp_min(1e-12)
                u_NV = u_NV - share_N[:, None] * centred_NV
            if kind != "path":
                held[key][at_N] = along_line(z_NV, u_NV, target_N, scale_J - 1).cpu().numpy()
                continue
            assert k is not None
            for place, scale in enumerate(scale_J.tolist()):
                between = states[k] + scale * (states[depth] - states[k])
                moved_NV = walk.changed(between).read(where_N2).float()
                held[key][at_N, place] = log_prob(moved_NV, target_N).cpu().numpy()
    return {key: np.stack([questions.utility(column) for column in values.T], axis=1) for key, values in held.items()}


def questions_of(spec: str, task: str, count: int) -> Questions:
    """Encoded questions of a task and split."""
    bare = spec.partition(":")[0]
    return Questions.of(list(ls.load_task(task, limit=count).encode(ls.load_tokenizer(bare))))


def crossing(spec: str, task: str, options: argparse.Namespace) -> dict[str, Any]:
    """All numbers of one model and task."""
    started = time.monotonic()
    name, _, model_args = spec.partition(":")
    model = ls.load_model(name, model_args=model_args, dtype=torch.float32, device=options.device)
    affine = getattr(model, "head", None) is not None
    kinds = tuple(kind for kind in options.kinds if kind != ("path" if affine else "orthogonal"))
    scale_J = np.linspace(0, 2, options.points)
    loops = (model.trained_depth or 4) + 2
    train, test = (
        along(model, questions_of(spec, f"{task}:{split}", count), loops, kinds, options.longest, scale_J)
        for split, count in (("train", options.train), ("test", options.test))
    )
    depths = [np.concatenate([part["depth", None, t] for t in range(1, loops + 1)], axis=1) for part in (train, test)]
    curves = [Curve(*key, scale_J, train[key], test[key]) for key in train if key[0] != "depth"]
    found = fitted_scales(curves, *depths, costs_of(model))
    return {
        "model": options.names.get(spec, Path(spec).name),
        "task": task,
        "trained_depth": model.trained_depth,
        "train": len(depths[0]),
        "test": len(depths[1]),
        "utility": [round(float(value), 5) for value in depths[1].mean(axis=0)],
        "costs": [round(float(value), 4) for value in (costs_of(model).outside, costs_of(model).check)],
        "rows": list(plain_rows(found)),
        "seconds": round(time.monotonic() - started, 1),
    }


def plain_rows(found: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Estimates as [value, low, high]."""

    def plain(value: Any) -> Any:
        if not isinstance(value, Estimate):
            return round(value, 5) if isinstance(value, float) else value
        ends = value.interval
        numbers = [value.value] + ([ends.low, ends.high] if ends else [])
        return [None if number is None else round(float(number), 6) for number in numbers]

    for name, values in found.items():
        yield {"name": name} | {key: plain(value) for key, value in estimated(values, Bootstrap()).items()}


def main(arguments: list[str] | None = None) -> None:
    """Parse the flags, measure, write the result after every model and task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["toy-ouro", "toy-ouro:inside=3", "toy-huginn"])
    parser.add_argument("--names", nargs="*", default=[], metavar="MODEL=NAME", help="what results call a model")
    parser.add_argument("--tasks", nargs="+", default=["stories", "arithmetic"])
    parser.add_argument("--train", type=int, default=240, help="train questions")
    parser.add_argument("--test", type=int, default=240, help="test questions")
    parser.add_argument("--longest", type=int, default=3, help="loops of the longest chord")
    parser.add_argument("--points", type=int, default=41, help="scales from 0 to 2")
    parser.add_argument("--kinds", nargs="+", default=["path", "chord", "orthogonal", "temperature"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("fitted_scale.json"))
    options = parser.parse_args(arguments)
    options.names = dict(name.rsplit("=", 1) for name in options.names)
    results: list[dict[str, Any]] = []
    for spec in options.models:
        for task in options.tasks:
            results.append(crossing(spec, task, options))
            options.output.write_text(json.dumps(results) + "\n")
            print(results[-1]["model"], task, results[-1]["utility"], results[-1]["seconds"], flush=True)


if __name__ == "__main__":
    main()
