"""Updates that follow one another may be surveyed together: the tables are those of each by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from loopscope.measuring.depth_pass import Trip
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.reading import HELD, AffineReadout
from loopscope.measuring.settings import Settings
from loopscope.models import load_model, load_tokenizer
from loopscope.tasks.load import load_task


@pytest.mark.parametrize("most", [2, 9])
def test_tables_do_not_depend_on_how_many_wait(
    most: int, checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, task = load_model(checkpoint("ouro"), dtype="float64"), load_task("arithmetic", limit=2)
    questions = QuestionEncoder(load_tokenizer(checkpoint("ouro")), None, "error").questions(task, task.rows, 0)
    settings = Settings.of([0, 1, 2, 4], [5, 6], "grid", tokens=True, trace=True, readout_dtype="float64")
    alone = Trip(model, settings, questions).run()
    together, paths_in_a_row = [], AffineReadout.paths_in_a_row

    def counted(readout, updates, *others):
        together.append(len(updates))
        return paths_in_a_row(readout, updates, *others)

    monkeypatch.setattr(AffineReadout, "in_a_row", lambda readout, state: most)
    monkeypatch.setattr(AffineReadout, "paths_in_a_row", counted)
    waiting = Trip(model, settings, questions).run()
    assert together == ([2, 1, 1] if most == 2 else [3, 1])
    assert {"questions", "depths", "tokens", "trace"} <= set(alone)
    for name, columns in alone.items():
        assert list(waiting[name]) == list(columns)
        for column, values in columns.items():
            np.testing.assert_array_equal(waiting[name][column], values, f"{name}.{column}")


def test_as_many_wait_as_memory_for_their_states_allows(checkpoint: Callable[[str], str]) -> None:
    model = load_model(checkpoint("ouro"), dtype="float64")
    assert model.head is not None
    readout = AffineReadout(model, model.head, torch.float64)
    on_gpu = torch.empty(HELD // 4, dtype=torch.int8, device="meta")
    assert readout.in_a_row(on_gpu) == 3
    assert readout.in_a_row(torch.empty(HELD, dtype=torch.int8, device="meta")) == 1
    assert readout.in_a_row(torch.empty(1)) == 1, "a core gains nothing"
    assert AffineReadout(model, model.head, torch.float64, careful=True).in_a_row(on_gpu) == 1
