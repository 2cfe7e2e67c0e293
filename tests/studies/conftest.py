"""Made-up runs for the studies; see `synthetic.py` for how they are made."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from loopscope.stats import Bootstrap


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"studies_tests_{name}", Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SYNTHETIC = _load("synthetic")
# The checks of the paper's numbers against each other are a package of the tests.
sys.path.insert(0, str(Path(__file__).parent / "paper"))


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The module that writes made-up runs."""
    return SYNTHETIC


@pytest.fixture
def records(tmp_path, synthetic):
    """From tasks to records, through a run directory written by the store."""
    from loopscope.studies.records import Records

    def make(*tasks, name="run", **changes):
        return Records([synthetic.write_run(tmp_path / name, list(tasks), **changes)])

    return make


@pytest.fixture
def quick():
    """Few resamples, for tests that do not look at intervals."""
    return Bootstrap(resamples=50)


@pytest.fixture
def unfinished_run(tmp_path, synthetic):
    """Two of four questions, at level grid."""
    from loopscope.store import StoredRun
    from loopscope.store.writer import open_or_create

    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.4, 0.3, 0.2], [-1.0] * 4)})
    described = synthetic.manifest([task], unit_size=2, level="grid")
    with open_or_create(tmp_path / "begun", described) as writer:
        unit = writer.pending()[0]
        rows = np.arange(unit.start, unit.stop)
        made = {t.name: synthetic.MAKERS[t.name](described, task, rows) for t in described.tables()}
        writer.commit(unit, {name: synthetic.declared(name, columns) for name, columns in made.items()})
    return StoredRun(tmp_path / "begun")


@pytest.fixture(scope="session")
def lively(tmp_path_factory, synthetic):
    """A run of four tasks with everything in it, at a size where intervals mean something."""
    transitions = [1, 2, 3, 4]
    sizes = {"arithmetic": 160, "sums": 120, "arithmetic-mc": 150, "choices": 90}
    tasks = []
    for place, (name, n) in enumerate(sizes.items()):
        paths = {t: synthetic.realistic(n, seed=100 * place + t, curvature=1.0 + 0.2 * t) for t in transitions}
        kind, tokens = ("solution", "options")[place > 1], synthetic.realistic_tokens(n, transitions, seed=place)
        tasks.append(synthetic.Task(name, paths, kind=kind, tokens=tokens))
    return synthetic.write_run(
        tmp_path_factory.mktemp("lively") / "lively", tasks, tokens=True, paths=True, depths=(1, 2, 3, 4, 5)
    )
