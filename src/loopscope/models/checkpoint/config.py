"""A checkpoint's config.json: found, parsed, and read field by field, with one clear line for whatever is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopscope.errors import LoopscopeError, shown

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"


LARGEST_JSON = 100_000_000
"""Bytes of a configuration or an index; the largest published ones have a tenth."""
LARGEST_SIZE = 2**31 - 1
"""Of any width, vocabulary or number of positions: a hundred thousand times today's."""
MOST_LAYERS = 1000
"""The deepest published models have a tenth."""
MOST_LOOPS = 1_000_000
"""Trained depth."""
LARGEST_NUMBER, SMALLEST_NUMBER = 1e30, 1e-30
"""Beyond these a number has no use in float32, whose sums and products would overflow or vanish."""


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


class ConfigFields:
    """The fields of one config.json, read with their types checked.

    >>> ConfigFields({"hidden_size": 64}, "Ouro").size("hidden_size")
    64
    """

    def __init__(self, json: Mapping[str, Any], family: str) -> None:
        self.json = json
        self.family = family

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.json.get(key) is not None

    def fault(self, message: str) -> LoopscopeError:
        """The error to raise: one line that names the file and the family."""
        return LoopscopeError(f"config.json ({self.family}): {message}")

    def size(self, key: str, default: int | None = None, most: int = LARGEST_SIZE) -> int:
        """A positive integer of at most `most`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.fault(f"{key} must be a positive integer, not {shown(value)}")
        if value > most:
            raise self.fault(f"{key} must be at most {most}, not {shown(value)}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """An integer that may be zero."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.fault(f"{key} must be an integer of at least 0, not {shown(value)}")
        return value

    def number(self, key: str, default: float | None = None, most: float = LARGEST_NUMBER) -> float:
        """A positive number of at most `most`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.fault(f"{key} must be a positive number, not {shown(value)}")
        if not SMALLEST_NUMBER <= value <= most:
            raise self.fault(f"{key} must be from {SMALLEST_NUMBER} to {most}, not {shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.json.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(f"{key} must be true or false, not {shown(value)}")
        return value

    def mapping(self, key: str) -> ConfigFields | None:
        """A nested object, or None where it is absent or null."""
        value = self.json.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.fault(f"{key} must be an object, not {shown(value)}")
        return ConfigFields(value, f"{self.family}, {key}")

    def token_ids(self, key: str, vocabulary: int) -> tuple[int, ...]:
        """Token ids given as one integer, a list of them, or not at all; each below `vocabulary`."""
        value = self.json.get(key)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in values):
            raise self.fault(f"{key} must be a token id or a list of them, not {shown(value)}")
        strange = next((item for item in values if not 0 <= item < vocabulary), None)
        if strange is not None:
            raise self.fault(f"{key} {shown(strange)} is outside the vocabulary of {vocabulary}")
        return tuple(values)

    def only(self, key: str, *supported: Any) -> None:
        """Refuses every value but the supported ones; an absent or null field passes."""
        value = self.json.get(key)
        if value is not None and value not in supported:
            choices = " or ".join(repr(item) for item in supported)
            raise self.fault(f"{key} {shown(value)} is not supported, only {choices}")

    def only_full_attention(self, layers: int) -> None:
        """Refuses sliding windows, however the file asks for them."""
        kinds = self.json.get("layer_types")
        if kinds is not None:
            if not isinstance(kinds, list) or len(kinds) != layers:
                raise self.fault(f"layer_types must name one kind for each of the {layers} layers")
            other = sorted({str(kind) for kind in kinds} - {"full_attention"})
            if other:
                raise self.fault(f"layer_types {shown(other[0])} is not supported, only 'full_attention'")
        if self.flag("use_sliding_window", kinds is None) and self.has("sliding_window"):
            raise self.fault(f"sliding_window {shown(self.json['sliding_window'])} is not supported, only null")

    def grouped_heads(self, heads: int, key: str = "num_key_value_heads") -> int:
        """The number of key-value heads, which must divide the number of query heads."""
        shared = self.size(key, heads)
        if heads % shared:
            raise self.fault(f"{heads} attention heads cannot share {shared} key-value heads")
        return shared

    def head_width(self, hidden: int, heads: int) -> int:
        """head_dim, or hidden / heads where it is left out; even, as rotary positions need."""
        if not self.has("head_dim") and hidden % heads:
            raise self.fault(f"hidden size {hidden} does not divide into {heads} heads; give head_dim")
        width = self.size("head_dim", hidden // heads or 1)
        if width % 2:
            raise self.fault(f"head_dim {width} is odd; rotary positions need an even one")
        return width

    def _get(self, key: str, default: float | None) -> Any:
        value = self.json.get(key)
        if value is not None:
            return value
        if default is None:
            raise self.fault(f"{key} is missing")
        return default
