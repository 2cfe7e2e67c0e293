"""Benchmarks from the Hugging Face hub, at pinned revisions, through `datasets` (extra `[hub]`).

`HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT` and `HF_HUB_OFFLINE` act as in every program that uses `datasets`. Only data
files are read: `datasets` runs no repository code.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from loopscope._errors import LoopscopeError, setting
from loopscope.tasks.rows import SourceRow


@dataclass(frozen=True)
class HubSource:
    """A data set on the hub.

    Attributes:
        repository: "openai/gsm8k"; a local folder in the same layout works as well.
        revision: the commit that is read.
        config: the configuration within the repository, if it has several.
    """

    repository: str
    revision: str
    config: str | None = None

    def __str__(self) -> str:
        config = f" ({self.config})" if self.config else ""
        return f"{self.repository}@{self.revision[:8]}{config}"


def read_hub(source: HubSource, split: str) -> Iterator[SourceRow]:
    """The rows of a split on the hub, in the repository's order.

    Raises:
        LoopscopeError: `datasets` is not installed, or the split cannot be fetched.
    """
    data = _load(source, split)
    for index, fields in enumerate(data):
        yield SourceRow(index, f"{source} {split}, row {index}", dict(fields))


def _load(source: HubSource, split: str) -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise LoopscopeError(
            f"reading {source.repository} from the hub needs the hub extra: pip install 'loopscope[hub]', "
            f"or give local files with {setting('data_dir')}"
        ) from error
    try:
        return datasets.load_dataset(source.repository, source.config, split=split, revision=source.revision)
    except Exception as error:  # whatever the network, the hub or its cache did wrong; no code of ours runs here
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise LoopscopeError(
            f"cannot load {source} {split} from the hub ({reason}); check the network, or give local files "
            f"with {setting('data_dir')}"
        ) from error
