"""A checkpoint's config.json: found and parsed, with one clear line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loopscope.errors import LoopscopeError, shown

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"


LARGEST_JSON = 100_000_000
"""Bytes of a configuration or an index; the largest published ones have a tenth."""
MOST_LOOPS = 1_000_000
"""Trained depth."""


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a checkpoint folder."""
    if not folder.is_dir():
        what = "is a file: give the folder it lies in" if folder.exists() else "does not exist"
        raise LoopscopeError(f"{folder} {what}")
    if not (folder / CONFIG).is_file():
        raise LoopscopeError(f"{folder} has no {CONFIG}: it is not a checkpoint in the Hugging Face layout")
    return read_json_object(folder / CONFIG)


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file that must hold an object."""

    def consistent(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in pairs:
            if result.setdefault(name, value) != value:
                raise LoopscopeError(f"{path} gives {shown(name)} two values; download or export it again")
        return result

    try:
        size = path.stat().st_size
        if size > LARGEST_JSON:
            raise LoopscopeError(f"{path} has {size} bytes, more than the {LARGEST_JSON} allowed: it is no {path.name}")
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=consistent)
    except OSError as error:
        raise LoopscopeError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise LoopscopeError(f"{path} is not valid JSON ({reason}); download or export it again") from None
    if not isinstance(value, dict):
        raise LoopscopeError(f"{path} holds no JSON object; download or export it again")
    return value
