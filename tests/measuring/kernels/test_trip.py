"""A whole trip with the fused readout against one without: the head passes by three times, and the numbers agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from loopscope.kernels.choice import implementation
from loopscope.measuring.batch_pass import BatchPass, Tables
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.settings import Settings
from loopscope.models import load_model, load_tokenizer
from loopscope.models.families.ouro import Ouro
from loopscope.readout.affine import in_a_row
from loopscope.readout.affine.fused import path
from loopscope.tasks.load import load_task


@pytest.fixture
def plain_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states are those of the plain code: only how they are read is compared."""
    step = Ouro.step

    def plain_step(*arguments: Any) -> Tensor:
        with implementation("reference"):
            return step(*arguments)

    monkeypatch.setattr(Ouro, "step", plain_step)


@pytest.mark.usefixtures("interpreted", "plain_steps")
@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_fused_trip(task: str, checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, loaded = load_model(checkpoint("ouro"), dtype="bfloat16"), load_task(task, limit=1)
    questions = QuestionEncoder(load_tokenizer(checkpoint("ouro")), None, "error").questions(loaded, loaded.rows, 0)
    settings = Settings.of([1], [], "grid")
    with implementation("reference"):
        plain = BatchPass(model, settings, questions).run()
    sweep, asked = path.fused_survey, []

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(options)
        return sweep(*arguments, **options)

    monkeypatch.setattr(path, "fused_survey", counted)
    with implementation("triton"):
        pending = BatchPass(model, settings, questions).launch()
        found = pending.finish()
    assert not pending.repeated
    assert len(asked) == 3, "the survey, the quadratic scale, both rounded states"
    _require_close(found, plain)


@pytest.mark.usefixtures("interpreted", "plain_steps")
def test_updates_that_follow_one_another(checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, loaded = load_model(checkpoint("ouro"), dtype="bfloat16"), load_task("arithmetic", limit=1)
    questions = QuestionEncoder(load_tokenizer(checkpoint("ouro")), None, "error").questions(loaded, loaded.rows, 0)
    settings, lengths, chain = Settings.of([0, 1, 2], [], "quick"), [], in_a_row.fused_surveys
    with implementation("reference"):
        plain = BatchPass(model, settings, questions).run()

    def counted(states: Sequence[Tensor], *arguments: Any, **options: Any) -> Any:
        lengths.append(len(states))
        return chain(states, *arguments, **options)

    monkeypatch.setattr(in_a_row, "fused_surveys", counted)
    with implementation("triton"):
        found = BatchPass(model, settings, questions).run()
    assert lengths == [4], "each state once"
    _require_close(found, plain)


def _require_close(found: Tables, plain: Tables) -> None:
    assert found.keys() == plain.keys()
    for table, columns in plain.items():
        for name, values in columns.items():
            if isinstance(values, np.ndarray) and values.dtype.kind == "f":
                np.testing.assert_allclose(found[table][name], values, rtol=1e-5, atol=2e-6, err_msg=name)
