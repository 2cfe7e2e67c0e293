"""The published checkpoints, as `published.toml` has them.

Without a pinned commit the newest is taken, and the commit is recorded with the model.
"""

from __future__ import annotations

import tomllib
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
        family: the name of its family.
        config: the part of config.json that decides shapes and arithmetic; empty where it is not known.
        stored_dtype: how the weights are stored; they are run in `RUN_DTYPE`.
        revision: the pinned commit, if one is known.
        parameters: unique parameters, a tied head counted once; None where they are not known.
        trained_depth: the number of loops it was trained for (on average, where that was drawn); None where unknown.
        certain: what was checked against the published code, counts or files, in one line.
        note: what is not certain about the entry, in one line; empty where everything was read from its own files.
        tokenizer_repo: the hub name of its tokenizer, where that is not its own.
    """

    name: str
    repo_id: str
    family: str
    config: Mapping[str, Any]
    stored_dtype: str
    revision: str | None = None
    parameters: int | None = None
    trained_depth: int | None = None
    certain: str = ""
    note: str = ""
    tokenizer_repo: str | None = None


def _published() -> tuple[Published, ...]:
    text = Path(__file__).with_name("published.toml").read_text(encoding="utf-8")
    found = []
    for group in tomllib.loads(text)["group"]:
        shared = {name: value for name, value in group.items() if name not in ("config", "checkpoint")}
        for entry in group["checkpoint"]:
            changes = entry.get("config")
            config = {} if changes == {} else _merged(group["config"], changes or {})
            name = entry["repo_id"].partition("/")[2].lower()
            found.append(Published(**{"name": name, **shared, **entry, "config": config}))
    return tuple(found)


def _merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with changes, those of its objects included."""
    nested = {
        name: _merged(config[name], given) for name, given in changes.items() if isinstance(config.get(name), dict)
    }
    return {**config, **changes, **nested}


PUBLISHED = _published()
