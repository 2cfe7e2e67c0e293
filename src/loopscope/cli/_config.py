"""`--config FILE`: flags of a command from a YAML mapping."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope._errors import LoopscopeError

if TYPE_CHECKING:
    from collections.abc import Iterable


def read_flags(path: str, known: Iterable[str]) -> dict[str, Any]:
    """Defaults for a command: keys are flag names with `-` or `_`; an unknown key is an error that names the known."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise LoopscopeError(f"cannot read --config {path}: {error.strerror}") from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise LoopscopeError(f"--config {path} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise LoopscopeError(f"--config {path} must be a mapping of flags to values, e.g. `limit: 100`")
    flags = {str(key).lstrip("-").replace("-", "_"): value for key, value in content.items()}
    names = set(known)
    if unknown := sorted(set(flags) - names):
        raise LoopscopeError(
            f"--config {path} sets unknown flag {unknown[0]!r}; known flags: {', '.join(sorted(names))}"
        )
    return {key: ",".join(map(str, value)) if isinstance(value, list) else value for key, value in flags.items()}
