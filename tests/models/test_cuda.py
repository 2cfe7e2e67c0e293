"""The same numbers on an accelerator, and no waiting for it inside a step."""

from __future__ import annotations

import pytest
import torch

from loopscope.models.batch import Batch
from loopscope.models.generate import generate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
FAMILIES = ["ouro", "huginn", "retrofit_llama", "retrofit_olmo"]
ROWS = [[5, 9, 1, 60, 33, 2, 17], [7, 8, 30, 4], [99]]


@pytest.fixture(autouse=True)
def full_float32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_logits_are_those_of_the_cpu(golden_model, family):
    here, there = golden_model(family), golden_model(family).to("cuda")
    batch = Batch.from_rows(ROWS, source_rows=[1, 2, 3])
    valid = batch.attention_mask
    expected = here.states(batch, [1, 4])
    for t, state in there.states(batch, [1, 4]).items():
        assert (state.cpu() - expected[t])[valid].abs().max() < 5e-5
        with torch.no_grad():
            for dtype in (None, torch.float64):
                found = there.readout(state, dtype=dtype).cpu()
                assert (found - here.readout(expected[t], dtype=dtype))[valid].abs().max() < 5e-5


def test_left_padding(golden_model):
    here, there = golden_model("ouro"), golden_model("ouro").to("cuda")
    batch = Batch.from_rows(ROWS, padding="left")
    found, expected = there.states(batch, [4])[4].cpu(), here.states(batch, [4])[4]
    assert (found - expected)[batch.attention_mask].abs().max() < 5e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_never_waits_for_the_device(golden_model, family):
    model = golden_model(family, dtype=torch.bfloat16).to("cuda")
    with torch.no_grad():
        context = model.embed(Batch.from_rows(ROWS))
        model.step(context.state, context)
        torch.cuda.set_sync_debug_mode("error")
        try:
            state = model.step(context.state, context)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert state.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_generation_equals_reference(golden_model, family):
    model = golden_model(family).to("cuda")
    options = {"max_new_tokens": 8, "depth": 3, "source_rows": [3, 4, 5], "eos_ids": []}
    assert generate(model, ROWS, **options) == generate(model, ROWS, impl="reference", **options)
