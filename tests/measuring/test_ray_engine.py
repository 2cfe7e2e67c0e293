"""The Ray engine on a real local Ray: two workers, one killed in the middle, the records of the local engine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopscope.api import measure_with as measure
from loopscope.errors import LoopscopeError
from loopscope.measuring.progress import Progress
from loopscope.measuring.ray_engine import connect
from loopscope.run import Run
from loopscope.store import verify

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
# Ray's own housekeeping warns about sockets and processes that it leaves to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc to find the workers"),
]


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """One Ray for the whole file: starting it is what takes time."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("local_ray")
def test_killed_worker_changes_nothing(
    contents: Callable[[Path], dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dying: tuple[str, Path],
) -> None:
    """The worker that comes to row 5, the second question of the first of two units it holds, ends itself there."""
    model, fuse = dying
    options: Any = {"limit": 16, "unit_size": 2, "batch_size": 1, "level": "quick", "transitions": [1, 2], "lens": 2}

    def run(name: str, **more: Any) -> Run:
        return measure(model, ["arithmetic"], output=tmp_path / name, device="cpu", **options, **more)

    local = run("local")
    said: list[str] = []
    told: list[int] = []
    monkeypatch.setattr(Progress, "count", lambda self, questions, tokens: told.append(questions))
    fuse.touch()
    there = run("ray", engine="ray", workers=2, notify=said.append)
    assert not fuse.exists()
    assert sum("measured again: its worker died" in line for line in said) == 1
    assert verify(there).ok
    assert contents(there.path) == contents(local.path)
    assert there.backends_used == local.backends_used != ()  # the workers' own
    assert sum(told) == options["limit"]  # a lost worker's batches are counted once


def test_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(LoopscopeError, match=f"cannot reach the Ray cluster at {address}"):
        connect(ray, 1)


@pytest.mark.usefixtures("local_ray")
def test_mistake_in_a_worker_is_one_line_here(tmp_path: Path) -> None:
    with pytest.raises(LoopscopeError, match="'toy-uoro': did you mean toy-ouro"):
        measure("toy-uoro", ["arithmetic"], output=tmp_path / "run", transitions=[1], limit=1, engine="ray", workers=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("local_ray")
def test_gpu_that_the_cluster_lacks_is_refused(measured: Callable[..., Run]) -> None:
    with pytest.raises(LoopscopeError, match="the Ray cluster has no GPU"):
        measured("ouro", "arithmetic", engine="ray", device="cuda")


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("given", ["object", "function"])
def test_a_model_in_memory_travels(
    given: str, small_gpt: Any, contents: Callable[[Path], dict[str, bytes]], tmp_path: Path
) -> None:
    options = {"limit": 2, "unit_size": 1, "level": "quick", "transitions": [1], "device": "cpu"}

    def run(name: str, **more: Any) -> Run:
        model = small_gpt.build() if given == "object" else small_gpt.build
        return measure(model, "arithmetic", output=tmp_path / name, **options, **more)

    there = run("ray", engine="ray", workers=1)
    if given == "object":
        assert contents(there.path) == contents(run("local").path)
    shards = {name: data for name, data in contents(there.path).items() if name.endswith(".parquet")}
    again = contents(run("again").path)
    assert shards == {name: data for name, data in again.items() if name.endswith(".parquet")}


@pytest.mark.usefixtures("local_ray")
def test_a_model_that_cannot_travel_is_refused(small_gpt: Any, tmp_path: Path) -> None:
    model = small_gpt.build()
    model.lock = threading.Lock()
    with pytest.raises(LoopscopeError, match=r"cannot be sent to engine='ray''s workers .*model='mine.py:build'"):
        measure(model, "arithmetic", output=tmp_path / "run", transitions=[1], limit=1, engine="ray", workers=1)
    assert not (tmp_path / "run").exists()
