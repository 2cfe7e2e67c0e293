"""Q a second way: several questions at once are each by itself, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from loopscope.measuring import scalar_check
from loopscope.measuring.layout import Layout, collate
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.reading import readout_of
from loopscope.measuring.scalar_check import agrees, scalar_check_columns, scalar_quadratics
from loopscope.measuring.transfer import Arrival
from loopscope.measuring.update import Update
from loopscope.models import load_model, load_tokenizer
from loopscope.tasks.load import load_task

CHECKED = [False, True, True, False, True]


@pytest.mark.parametrize("together", [1, 10**9])
@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
@pytest.mark.parametrize("family", ["ouro", "huginn"])
@torch.no_grad()
def test_questions_together_are_each_by_itself(
    family: str, task: str, together: int, checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(scalar_check._LOGITS, "cpu", together)
    model, loaded = load_model(checkpoint(family), dtype="float64"), load_task(task, limit=5)
    questions = QuestionEncoder(load_tokenizer(checkpoint(family)), None, "error").questions(loaded, loaded.rows, 0)
    batch = collate(questions).batch
    layout = Layout.of(questions, batch, model.device)
    states = model.states(batch, [1, 2])
    update = Update(readout_of(model, torch.float64), layout, states[1], states[2])
    columns = scalar_check_columns(update, CHECKED)
    quadratic = torch.zeros(5, dtype=torch.float64)
    (found,) = Arrival([{"quadratic": quadratic, **columns}]).columns()
    assert [value is not None for value in found["scalar_quadratic"]] == CHECKED
    assert [value is not None for value in found["scalar_check_passed"]] == CHECKED
    for index, value in enumerate(found["scalar_quadratic"]):
        if value is not None:
            alone = scalar_quadratics(update.some([index]))
            assert value == pytest.approx(float(alone), rel=1e-10)
            assert found["scalar_check_passed"][index] is agrees(0.0, value)


def test_criterion_is_absolute_or_relative() -> None:
    assert agrees(1.0, 1.0 + 9e-5)
    assert not agrees(1.0, 1.0 + 2e-4)
    assert agrees(1e-7, 9e-7)
    assert not agrees(1e-7, 2e-6)
