"""`loopscope models` and `loopscope tasks`: what there is, one line each. No data is read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import typer

_INSIDE = {
    "name": "toy-ouro:inside=3",
    "location": "inside the package, by --model-args inside=3; its readout is not affine",
    "boundary": "the shared stack's stream before its layer 3, in the loop after the one counted",
}
"""What differs from toy-ouro in the row of the third embedded model, which has toy-ouro's weights."""


def models() -> None:
    """Families, sizes and revisions of the models there are."""
    rows = model_rows()
    from loopscope.models.families import families

    for family in families().values():
        typer.secho(f"{family.name}: {family.title}", bold=True)
        print(f"  state: {family.boundary}")
        for row in rows:
            if row["family"] == family.name:
                _print_model(row)
        for choice, meaning in family.config.options().items():
            print(f"  --model-args {choice}=… {meaning}")
        if family.name == "loop":
            print("  --model-args loop=FIRST-LAST, e.g. loop=10-20, of any causal language model of transformers")
    for row in rows:
        if row["kind"] == "entry point":
            print(f"yours: {row['name']}  {row['location']}")
    print("A folder, or ORGANISATION/NAME@REVISION on the hub, is a model's name, too.")


def _print_model(row: Mapping[str, Any]) -> None:
    size, depth, place = _size(row["parameters"]), row["trained_depth"] or "?", row["location"]
    if row["kind"] == "hub":  # the rest of the hub name is the model's name
        place = f"{place.partition('/')[0]} @{row['revision'][:8] if row['revision'] else 'newest'}"
    print(f"  {row['name']:<47} {size:>6} {depth:>3} loops  {place}")
    for title, text in (("certain", row.get("certain")), ("not certain", row.get("note"))):
        if text:
            typer.secho(f"    {title}: {text}", dim=True)


def model_rows() -> list[dict[str, Any]]:
    """What is listed, as plain values: embedded models, published checkpoints, the user's models."""
    from loopscope.models.families import families
    from loopscope.models.registry import PUBLISHED, RUN_DTYPE, entry_points

    published = []
    for entry in PUBLISHED:
        row = {"kind": "hub", "location": entry.repo_id, "dtype": RUN_DTYPE} | dataclasses.asdict(entry)
        del row["config"], row["repo_id"]
        published.append(row | {"boundary": families()[entry.family].boundary})
    users = [
        {"name": name, "family": "", "kind": "entry point", "location": code}
        for name, code in sorted(entry_points("loopscope.models").items())
    ]
    return [*_embedded_rows(), *published, *users]


def _embedded_rows() -> list[dict[str, Any]]:
    from loopscope.models.checkpoint import open_checkpoint
    from loopscope.models.families import detect_family, families
    from loopscope.models.registry import embedded_models

    rows = []
    for name, folder in embedded_models().items():
        checkpoint = open_checkpoint(folder)
        config = checkpoint.config
        family = detect_family(config, None)  # by the configuration alone: looking at tensor names would load torch
        tied = config.get("tie_embeddings") or config.get("tie_word_embeddings")
        uncounted = {"freqs_cis", "lm_head.weight"} if tied else {"freqs_cis"}
        row: dict[str, Any] = {
            "name": name,
            "family": family,
            "kind": "embedded",
            "location": "inside the package",
            "parameters": sum(
                math.prod(entry.shape) for key, entry in checkpoint.tensors.items() if key not in uncounted
            ),
            "trained_depth": config.get("total_ut_steps") or config.get("mean_recurrence"),
            "boundary": families()[family].boundary,
        }
        rows.append(row)
        if name == "toy-ouro":
            rows.append(row | _INSIDE | {"trained_depth": row["trained_depth"] - 1})
    return rows


def _size(parameters: int | None) -> str:
    if parameters is None:
        return "?"
    for unit, scale in (("B", 1e9), ("M", 1e6)):
        if parameters >= 0.5 * scale:
            return f"{parameters / scale:.2f}{unit}"
    return f"{parameters / 1e3:.0f}K"


KINDS = {
    "solution": "reference solutions, scored token by token",
    "options": "options, scored together on their length-normalised log-likelihoods",
}


def tasks() -> None:
    """The tasks there are."""
    from loopscope.tasks.known_tasks import list_tasks

    known = list_tasks()
    for kind, title in KINDS.items():
        typer.secho(title, bold=True)
        for task in known:
            if task.kind == kind:
                splits = [f"{name} {count}" for name, count in task.splits.items()] + list(task.subsets)
                print(f"  {task.name:<15} {task.summary} ({', '.join(splits)}; {task.source})")
    print("Choose a part with NAME:SPLIT, e.g. gsm8k:train256; the first part is meant when none is named.")
    print("A file of yours is named by its path: my.jsonl, or NAME=my.jsonl.gz.")
    print("A task of an installed lm-evaluation-harness: lm_eval:NAME, e.g. lm_eval:arc_easy, or the path of its YAML.")
