"""The published checkpoints: where they are, which commit is meant, and their configuration.

The configuration, in `published.json`, is enough to build a model of the same size with random weights and no network.
Commits are pinned where they are known; without one the newest is taken, and the commit is recorded with the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_DTYPE = "bfloat16"
"""What a published checkpoint is run in unless told otherwise, however it is stored: the paper's protocol."""


@dataclass(frozen=True)
class Published:
    """One published checkpoint.

    Attributes:
        name: the short name, lower case.
        repo_id: its name on the hub.
        revision: the pinned commit, if one is known.
        family: a name of `families`.
        parameters: unique parameters, a tied head counted once; None where they are not known.
        trained_depth: the number of loops it was trained for (on average, where that was drawn); None where unknown.
        stored_dtype: how the weights are stored; they are run in `RUN_DTYPE`.
        config: the part of config.json that decides shapes and arithmetic; empty where it is not known.
        certain: what was checked against the published code, counts or files, in one line.
        note: what is not certain about the entry, in one line; empty where everything was read from its own files.
        tokenizer_repo: the hub name of its tokenizer, where that is not its own.
    """

    name: str
    repo_id: str
    revision: str | None
    family: str
    parameters: int | None
    trained_depth: int | None
    stored_dtype: str
    config: Mapping[str, Any]
    certain: str = ""
    note: str = ""
    tokenizer_repo: str | None = None


def _read() -> tuple[Published, ...]:
    """The entries; their configurations are those of their family with what differs."""
    data = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
    found = []
    for entry in data["models"]:
        fields = entry.pop("config")
        found.append(
            Published(**entry, config={} if fields is None else {**data["configs"][entry["family"]], **fields})
        )
    return tuple(found)


PUBLISHED: tuple[Published, ...] = _read()
