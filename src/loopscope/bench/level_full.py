"""A pass at level full: FP64 path analysis, envelopes and roots of every question, in questions a second.

The same model and questions as `whole_pass`, fewer of them, held against the bare forward passes of their batches.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from loopscope.bench.clock import Clock
from loopscope.bench.row import Reference, Row, Setting, at_least
from loopscope.bench.whole_pass import BARE, pass_figures, request_of, set_up
from loopscope.store.column_types import Level

QUESTIONS, CPU_QUESTIONS = 256, 2
RATE = 40.0


def rows(setting: Setting) -> list[Row]:
    """One row."""
    count = QUESTIONS if setting.on_gpu else CPU_QUESTIONS
    wanted = dataclasses.replace(request_of(setting), level=Level.FULL, limit=count)
    sizes, clock = setting.sizes, Clock(setting.device, host=True)
    with tempfile.TemporaryDirectory() as scratch:
        setup = set_up(wanted, Path(scratch))
        raced = clock.race({"bare": setup.run_bare, "pass": setup.run_pass}, sizes.slow_repeats)
        ours = raced["pass"]
        rate = setup.size["questions"] / ours.value
        judged = sizes.judged and setting.on_gpu
        goal = at_least(f"at least {RATE:g} questions a second", RATE, rate, judged=judged)
        figures = {"questions_per_second": rate} | pass_figures(setup, clock)
        what = "A whole pass at level full: 257 nodes in FP64, envelopes, optimum and boundary of every question"
        return [
            Row("full", what, setup.size, "s", ours, (Reference(BARE, raced["bare"], floor=True),), (goal,), figures)
        ]
