from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from loopscope.models.tokenizer import Tokenizer

SHARED = Path(__file__).resolve().parents[2].parent / "shared"


def _shared(name: str) -> Path:
    if not (SHARED / name).is_dir():
        pytest.skip(f"needs the folder shared/{name} beside the repository")
    return SHARED / name


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Complete copies of the benchmarks."""
    return _shared("data")


@pytest.fixture(scope="session")
def ouro_tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(_shared("tokenizers/ouro"))


@pytest.fixture(scope="session")
def tiny_llama() -> ModuleType:
    """tests/tasks/tiny_llama.py."""
    spec = importlib.util.spec_from_file_location("tiny_llama", Path(__file__).with_name("tiny_llama.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows as a JSONL file (gzipped where the name says so) and returns its path."""

    def write(rows: list[Any], name: str = "mine.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write
