"""Q a second way: several questions at once are each by itself, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from loopscope import load_model, load_tokenizer
from loopscope.measuring import checks
from loopscope.measuring.batching import collate, encode_task
from loopscope.measuring.checks import scalar_check, scalar_quadratics
from loopscope.measuring.readouts import readout_of
from loopscope.measuring.update import Layout, PendingColumns, Update
from loopscope.tasks.load import load_task

CHECKED = [True, True, True, False, False]


@pytest.mark.parametrize(
    ("family", "task", "together"),
    [("ouro", "arithmetic", 1), ("ouro", "arithmetic-mc", 10**9), ("huginn", "arithmetic-mc", 10**9)],
)
@torch.no_grad()
def test_questions_together_are_each_by_itself(
    family: str, task: str, together: int, checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(checks._LOGITS, "cpu", together)
    model, loaded = load_model(checkpoint(family), dtype="float64"), load_task(task, limit=5)
    questions = list(encode_task(loaded, load_tokenizer(checkpoint(family)), None, "error").questions)
    batch = collate(questions).batch
    layout = Layout.of(questions, batch, model.device)
    states = model.states(batch, [1, 2])
    readout, update = readout_of(model, torch.float64), Update(layout, states[1], states[2])
    (found,) = PendingColumns([{"scalar_quadratic": scalar_check(readout, update, sum(CHECKED))}]).columns()
    assert [value is not None for value in found["scalar_quadratic"]] == CHECKED
    for index, value in enumerate(found["scalar_quadratic"]):
        if value is not None:
            alone = scalar_quadratics(readout, update.some([index]))
            assert value == pytest.approx(float(alone), rel=1e-10)
