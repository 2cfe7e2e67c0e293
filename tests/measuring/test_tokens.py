"""The exit gate's decisions in the tables are those of its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from loopscope import Batch, load_model, load_tokenizer
from loopscope.store import StoredRun
from loopscope.tasks.encoding import encode_row
from loopscope.tasks.load import load_task


def test_decisions(measured: Callable[..., StoredRun], checkpoint: Callable[[str], str]) -> None:
    run = measured("ouro", "arithmetic", transitions=[1, 2], depths=[], tokens=True, limit=3)
    model: Any = load_model(checkpoint("ouro"))
    tokenizer, task = load_tokenizer(checkpoint("ouro")), load_task("arithmetic", limit=3)
    for row, text in enumerate(task.rows):
        (sequence,) = encode_row(tokenizer, text, task.encoding).sequences
        states = model.states(Batch.from_rows([sequence.token_ids]), [1, 2, 3, 4])
        stay = torch.ones(len(sequence.token_ids), dtype=torch.float64)
        cdf = []
        for depth in (1, 2, 3):
            stop = torch.sigmoid(model.gate_logits(states[depth]).double())[0]
            stay = stay * (1 - stop)
            cdf.append((1 - stay).detach().numpy())
        reached = np.stack([*cdf, np.ones_like(cdf[0])]) >= model.exit_gate.threshold
        exit_depth = reached.argmax(0) + 1
        tokens = run.read("tokens").filter(run.read("tokens")["row"] == row)
        for t in (1, 2):
            own = tokens.filter(tokens["transition"] == t)
            places = own["position"].to_numpy()
            np.testing.assert_allclose(own["exit_cdf"], cdf[t - 1][places], atol=1e-6)
            np.testing.assert_array_equal(own["exit_depth"], exit_depth[places])
            np.testing.assert_array_equal(own["exit_depth_fp64"], exit_depth[places])
    assert len(set(run.read("tokens")["exit_depth"])) > 1, "a gate that treats all alike tests nothing"
