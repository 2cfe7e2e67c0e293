"""`loopscope models` and `loopscope tasks`: what there is, one line each. No data is read."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from loopscope.cli.flags import Json

if TYPE_CHECKING:
    from rich.console import Console

_INSIDE = {
    "name": "toy-ouro:inside=3",
    "location": "inside the package, by --model-args inside=3; its readout is not affine",
    "boundary": "the shared stack's stream before its layer 3, in the loop after the one counted",
}
"""What differs from toy-ouro in the row of the third embedded model, which has toy-ouro's weights."""


def models(as_json: Json = False) -> None:
    """Families, sizes and revisions of the models there are."""
    list_models(as_json=as_json)


def list_models(*, as_json: bool = False, console: Console | None = None) -> None:
    """Print every model there is a name for, on the console (stdout by default) or as one JSON array on stdout."""
    rows = model_rows()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from loopscope.models.families import families

    line = _printer(console)
    for family in families().values():
        members = [row for row in rows if row["family"] == family.name]
        line(f"{family.name}: {family.title}", style="bold")
        line(f"  state: {family.boundary}")
        for row in members:
            size = _size(row["parameters"])
            line(f"  {row['name']:<42} {size:>6} {row['trained_depth'] or '?':>3} loops  {_where(row)}")
            if row["certain"]:
                line(f"    certain: {row['certain']}", style="dim")
            if row["note"]:
                line(f"    not certain: {row['note']}", style="dim")
        for choice, meaning in family.config.options().items():
            line(f"  --model-args {choice}=… {meaning}")
        if family.name == "loop":
            line("  --model-args loop=FIRST-LAST, e.g. loop=10-20, of any causal language model of transformers")
    own = [row for row in rows if row["kind"] == "entry point"]
    if own:
        line("your own", style="bold")
    for row in own:
        line(f"  {row['name']:<42} {row['location']}")
    line("A folder, or ORGANISATION/NAME@REVISION on the hub, is a model's name, too.")


def model_rows() -> list[dict[str, Any]]:
    """What is listed, as plain values: embedded models, published checkpoints, the user's own."""
    from loopscope.models.families import families
    from loopscope.models.registry import PUBLISHED, RUN_DTYPE
    from loopscope.models.user_models import user_models

    published = [
        _row(
            entry.name,
            entry.family,
            "hub",
            entry.repo_id,
            revision=entry.revision,
            parameters=entry.parameters,
            trained_depth=entry.trained_depth,
            dtype=RUN_DTYPE,
            stored_dtype=entry.stored_dtype,
            boundary=families()[entry.family].boundary,
            certain=entry.certain,
            note=entry.note,
        )
        for entry in PUBLISHED
    ]
    own = [_row(name, "your own", "entry point", point.value) for name, point in sorted(user_models().items())]
    return [*_embedded_rows(), *published, *own]


def _row(
    name: str,
    family: str,
    kind: str,
    location: str,
    *,
    revision: str | None = None,
    parameters: int | None = None,
    trained_depth: int | None = None,
    dtype: str | None = None,
    stored_dtype: str | None = None,
    boundary: str | None = None,
    certain: str = "",
    note: str = "",
) -> dict[str, Any]:
    return locals()


def _embedded_rows() -> list[dict[str, Any]]:
    from loopscope.models.checkpoint import open_checkpoint
    from loopscope.models.families import detect_family, families
    from loopscope.models.registry import embedded_models

    rows = []
    for name, folder in embedded_models().items():
        checkpoint = open_checkpoint(folder)
        # Told by the configuration alone, since looking at tensor names would load torch.
        family = detect_family(checkpoint.config, None)
        tied = checkpoint.config.get("tie_embeddings") or checkpoint.config.get("tie_word_embeddings")
        uncounted = {"freqs_cis", "lm_head.weight"} if tied else {"freqs_cis"}
        row = _row(
            name,
            family,
            "embedded",
            "inside the package",
            parameters=sum(math.prod(entry.shape) for key, entry in checkpoint.tensors.items() if key not in uncounted),
            trained_depth=checkpoint.config.get("total_ut_steps") or checkpoint.config.get("mean_recurrence"),
            boundary=families()[family].boundary,
        )
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


def _where(row: Mapping[str, Any]) -> str:
    if row["kind"] != "hub":
        return str(row["location"])
    # The rest of the hub name is the model's name.
    return f"{row['location'].partition('/')[0]} @{row['revision'][:8] if row['revision'] else 'newest'}"


KINDS = {
    "solution": "reference solutions, scored token by token",
    "options": "options, scored together on their length-normalised log-likelihoods",
}


def tasks(as_json: Json = False) -> None:
    """The tasks there are."""
    list_tasks(as_json=as_json)


def list_tasks(*, as_json: bool = False, console: Console | None = None) -> None:
    """Print every task there is, on the console (stdout by default) or as one JSON array on stdout."""
    rows = task_rows()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    line = _printer(console)
    for kind, title in KINDS.items():
        line(title, style="bold")
        for row in rows:
            if row["kind"] == kind:
                splits = [f"{name} {count}" for name, count in row["splits"].items()] + list(row["subsets"])
                line(f"  {row['name']:<15} {row['summary']} ({', '.join(splits)}; {row['source']})")
    line("Choose a part with NAME:SPLIT, e.g. gsm8k:train256; the first part is meant when none is named.")
    line("A file of your own is named by its path: my.jsonl, or NAME=my.jsonl.gz.")
    line("A task of an installed lm-evaluation-harness: lm_eval:NAME, e.g. lm_eval:arc_easy, or the path of its YAML.")


def task_rows() -> list[dict[str, Any]]:
    """What is listed, as plain values."""
    from loopscope.tasks.known_tasks import list_tasks as known_tasks

    return [dataclasses.asdict(task) for task in known_tasks()]


def _printer(console: Console | None) -> Callable[..., None]:
    """Prints a line on the console, stdout when left out: `line(text, style=None)`."""
    from rich.console import Console

    # Wrapped nowhere: a name that is cut or broken cannot be copied, nor found with grep.
    return partial((console or Console()).print, markup=False, highlight=False, soft_wrap=True)
