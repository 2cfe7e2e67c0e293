"""A pass through the Ray engine, one replica and two of them on the same device, against the local engine.

Replicas are loaded and have measured the same questions once before; what is timed is a pass from the opening of its
run directory to the seal on it. The records of all three are compared byte for byte.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from loopscope.bench.clock import Clock, Measured
from loopscope.bench.row import Reference, Row, Setting, at_least, at_most
from loopscope.bench.whole_pass import PassSetup, request_of, set_up
from loopscope.measuring.run import Engine

LOCAL = "the local engine"
TWO = "two replicas on the same device"
QUESTIONS = 640
SPEED = 0.95


def rows(setting: Setting) -> list[Row]:
    """One row."""
    from loopscope.measuring.ray_engine import RayEngine

    wanted = request_of(setting)
    if setting.on_gpu:
        wanted = dataclasses.replace(wanted, limit=QUESTIONS)
    clock, repeats = Clock(setting.device, host=True), setting.sizes.slow_repeats
    with tempfile.TemporaryDirectory() as scratch:
        setup = set_up(wanted, Path(scratch))
        local = clock.race({LOCAL: setup.run_pass}, repeats)[LOCAL]
        expected, differing, measured = _records(setup.run_pass()), 0, []
        for replicas in (1, 2):
            engine = RayEngine(setup.request, replicas, None)
            try:
                engine.facts()
                found, timed = _timed(setup, engine, clock, repeats)
            finally:
                engine.close()
            measured.append(timed)
            differing += sum(found.get(name) != data for name, data in expected.items()) + len(found.keys() - expected)
    one, two = measured
    speed = local.value / one.value
    judged = setting.sizes.judged and setting.on_gpu
    goals = (
        at_least(f"at least {SPEED:g} of the local engine's speed", SPEED, speed, judged=judged, against=LOCAL),
        at_most("no file of records differs from the local engine's", 0.0, float(differing), judged=True),
    )
    what = "A whole pass through the Ray engine, one replica, update 4→5, level grid"
    return [Row("ray", what, setup.size, "s", one, (Reference(LOCAL, local), Reference(TWO, two)), goals)]


def _timed(setup: PassSetup, engine: Engine, clock: Clock, repeats: int) -> tuple[dict[str, bytes], Measured]:
    """The records of the last pass, and what each of them took."""
    folders: list[Path] = []
    measured = clock.race({"ray": lambda: folders.append(setup.run_pass(engine))}, repeats)["ray"]
    return _records(folders[-1]), measured


def _records(folder: Path) -> dict[str, bytes]:
    """The Parquet files of a run by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}
