"""The monitor on a GPU: the training does not notice it there either, and its numbers are those of the CPU."""

from __future__ import annotations

import pytest
import torch

import loopscope as ls

pytestmark = pytest.mark.gpu


def trained(model, task=None, steps=60):
    """Dropout draws from the GPU's own stream; autocast is the training's."""
    torch.manual_seed(1)
    model = model.cuda()
    monitor = None if task is None else ls.Monitor(model, task, transitions=[1, 2], every=5, autocast="bfloat16")
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(1, steps + 1):
        ids = torch.randint(0, model.vocabulary_size, (4, 9), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.loss(ids)
        loss.backward()
        if monitor is not None:
            monitor.step(step)
        optimiser.step()
        optimiser.zero_grad()
    return model.state_dict(), torch.cuda.get_rng_state()


def test_a_training_ends_with_identical_weights_and_the_same_stream(small, task):
    (weights, stream), (beside, stream_beside) = trained(small()), trained(small(), task)
    assert all(torch.equal(weights[name], beside[name]) for name in weights)
    assert torch.equal(stream, stream_beside)


@pytest.mark.parametrize("affine", [True, False])
def test_its_numbers_are_those_of_the_cpu(small, task, affine):
    here, there = (
        ls.Monitor(small(affine=affine).to(device), task, transitions=[1, 2]).measure(1) for device in ("cpu", "cuda")
    )
    for one, other in zip(here.updates, there.updates, strict=True):
        for name in ("gain", "slope", "quadratic", "quarter_gain", "quadratic_gain", "utility_before"):
            assert other[name] == pytest.approx(one[name], abs=1e-5)


def test_calls_keep_no_memory(small, task):
    monitor = ls.Monitor(small(affine=False).cuda().double(), task)
    monitor.measure(0)
    held = torch.cuda.memory_allocated()
    for step in range(3):
        monitor.measure(step)
    assert torch.cuda.memory_allocated() == held
