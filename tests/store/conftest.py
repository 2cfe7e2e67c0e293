import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopscope.store import Manifest, StoredRun
from loopscope.store.manifest import WorkUnit
from loopscope.store.writer import open_or_create
from tests.store import synthetic

VOLATILE = {"events.jsonl", ".loopscope.lock"}


@pytest.fixture
def make_manifest() -> Callable[..., Manifest]:
    return synthetic.make_manifest


@pytest.fixture
def task_info() -> Callable[..., Any]:
    return synthetic.task_info


@pytest.fixture
def make_tables() -> Callable[[Manifest, WorkUnit], dict[str, Any]]:
    return synthetic.make_tables


@pytest.fixture
def measure() -> Callable[..., StoredRun]:
    """Open or create a run and take it to its end, as the measuring command would."""

    def run(path: Path, manifest: Manifest | None = None) -> StoredRun:
        manifest = synthetic.make_manifest() if manifest is None else manifest
        with open_or_create(path, manifest) as writer:
            for unit in writer.pending():
                writer.commit(unit, synthetic.make_tables(writer.manifest, unit))
            return writer.finish()

    return run


@pytest.fixture
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Every file of a run directory that must not depend on how the run went."""

    def read(path: Path) -> dict[str, bytes]:
        return {
            file.relative_to(path).as_posix(): file.read_bytes()
            for file in sorted(path.rglob("*"))
            if file.is_file() and file.name not in VOLATILE
        }

    return read


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted. Copy it before changing it."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    with open_or_create(path, synthetic.make_manifest()) as writer:
        for unit in writer.pending():
            writer.commit(unit, synthetic.make_tables(writer.manifest, unit))
        writer.finish()
    return path


@pytest.fixture
def copy(tmp_path: Path, undisturbed: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(undisturbed, tmp_path / "run"))
