"""U at a depth is the same number whoever says it: the update that starts there, the one that ends there, a reading."""

from __future__ import annotations

from collections.abc import Callable

import torch

from loopscope.measuring.batching import collate, encode_task
from loopscope.measuring.readouts import AffineReadout, Readings
from loopscope.measuring.update import Layout
from loopscope.models import load_model, load_tokenizer
from loopscope.tasks.load import load_task


@torch.no_grad()
def test_two_depths_at_a_time_are_each_by_itself(checkpoint: Callable[[str], str]) -> None:
    model = load_model(checkpoint("ouro"), dtype="float64")
    task = load_task("arithmetic-mc", limit=3)
    questions = list(encode_task(task, load_tokenizer(checkpoint("ouro")), None, "error").questions)
    batch = collate(questions).batch
    layout = Layout.of(questions, batch, model.device)
    assert model.head is not None
    readout = AffineReadout(model, model.head, torch.float64)
    in_pairs = AffineReadout(model, model.head, torch.float64)
    in_pairs.reads_pairs = True
    alone, paired = Readings(readout, layout), Readings(in_pairs, layout)
    for depth, state in model.states(batch, range(5)).items():
        alone.read(depth, state)
        paired.read(depth, state)
    assert set(paired.found) == {0, 1, 2, 3}, "the last one waits for another"
    paired.finish()
    assert set(paired.found) == set(alone.found) == set(range(5))
    for depth, found in alone.found.items():
        for name in ("log_p_N", "sums_R", "scores_R", "utility_B"):
            torch.testing.assert_close(getattr(paired.found[depth], name), getattr(found, name), rtol=1e-12, atol=1e-13)
