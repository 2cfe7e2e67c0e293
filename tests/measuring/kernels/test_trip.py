"""A whole trip with the fused readout against one without: the head passes by three times, and the numbers agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from loopscope.kernels.choice import implementation
from loopscope.measuring.depth_pass import Trip
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.settings import Settings
from loopscope.models import load_model, load_tokenizer
from loopscope.models.families.ouro import Ouro
from loopscope.readout.affine.fused import path
from loopscope.tasks.load import load_task


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_fused_trip(task: str, checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, loaded = load_model(checkpoint("ouro"), dtype="bfloat16"), load_task(task, limit=1)
    questions = QuestionEncoder(load_tokenizer(checkpoint("ouro")), None, "error").questions(loaded, loaded.rows, 0)
    settings = Settings.of([1], [], "grid")
    with implementation("reference"):
        plain = Trip(model, settings, questions).run()
    step, sweep, asked = Ouro.step, path.fused_survey, []

    def plain_step(*arguments: Any) -> Tensor:
        with implementation("reference"):
            return step(*arguments)

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(options)
        return sweep(*arguments, **options)

    # The states are those of the plain code: only how they are read is compared.
    monkeypatch.setattr(Ouro, "step", plain_step)
    monkeypatch.setattr(path, "fused_survey", counted)
    with implementation("triton"):
        pending = Trip(model, settings, questions).launch()
        found = pending.finish()
    assert not pending.repeated
    assert len(asked) == 3, "the survey, the quadratic scale, both rounded states"
    for table, columns in plain.items():
        for name, values in columns.items():
            if isinstance(values, np.ndarray) and values.dtype.kind == "f":
                np.testing.assert_allclose(found[table][name], values, rtol=1e-5, atol=2e-6, err_msg=name)
