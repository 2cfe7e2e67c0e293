import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from loopscope.store import Manifest, StoredRun
from loopscope.store.manifest import WorkUnit
from loopscope.store.writer import open_or_create

HERE = Path(__file__).parent


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"store_tests_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SYNTHETIC = _load("synthetic")
VOLATILE = {"events.jsonl", ".loopscope.lock"}


@pytest.fixture
def make_manifest() -> Callable[..., Manifest]:
    return SYNTHETIC.make_manifest


@pytest.fixture
def task_info() -> Callable[..., Any]:
    return SYNTHETIC.task_info


@pytest.fixture
def make_tables() -> Callable[[Manifest, WorkUnit], dict[str, Any]]:
    return SYNTHETIC.make_tables


@pytest.fixture
def measure() -> Callable[..., StoredRun]:
    """Open or create a run and take it to its end, as the measuring command would."""

    def run(path: Path, manifest: Manifest | None = None) -> StoredRun:
        manifest = SYNTHETIC.make_manifest() if manifest is None else manifest
        with open_or_create(path, manifest) as writer:
            for unit in writer.pending():
                writer.commit(unit, SYNTHETIC.make_tables(writer.manifest, unit))
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
    with open_or_create(path, SYNTHETIC.make_manifest()) as writer:
        for unit in writer.pending():
            writer.commit(unit, SYNTHETIC.make_tables(writer.manifest, unit))
        writer.finish()
    return path


@pytest.fixture
def copy(tmp_path: Path, undisturbed: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(undisturbed, tmp_path / "run"))
