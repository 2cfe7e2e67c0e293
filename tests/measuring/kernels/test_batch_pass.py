"""A whole batch whose readout runs in the kernels against one whose readout does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from loopscope import load_model, load_tokenizer
from loopscope.kernels.choice import implementation
from loopscope.measuring.batch_pass import BatchPass, Tables
from loopscope.measuring.batching import encode_task
from loopscope.measuring.config import MeasureConfig
from loopscope.models.families.ouro import Ouro
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
@pytest.mark.parametrize(
    ("task", "transitions", "level"),
    [("arithmetic", [1], "grid"), ("arithmetic-mc", [1], "grid"), ("arithmetic", [0, 1, 2], "quick")],
)
def test_a_batch_read_by_the_kernels(
    task: str, transitions: list[int], level: str, checkpoint: Callable[[str], str]
) -> None:
    model, loaded = load_model(checkpoint("ouro"), dtype="bfloat16"), load_task(task, limit=1)
    questions = encode_task(loaded, load_tokenizer(checkpoint("ouro")), None, "error").questions
    settings = MeasureConfig(model="toy-ouro", tasks=(), transitions=transitions, level=level)
    with implementation("reference"):
        plain = BatchPass(model, settings, questions).launch().finish()
    with implementation("triton"):
        pending = BatchPass(model, settings, questions).launch()
        found = pending.finish()
    assert found is not None, "the kernels gave up no token"
    assert pending.readout.backends_used == {"kernel"}
    _require_close(found, plain)


def _require_close(found: Tables, plain: Tables) -> None:
    assert found.keys() == plain.keys()
    for table, columns in plain.items():
        for name, values in columns.items():
            if isinstance(values, np.ndarray) and values.dtype.kind == "f":
                np.testing.assert_allclose(found[table][name], values, rtol=1e-5, atol=2e-6, err_msg=name)
