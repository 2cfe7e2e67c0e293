"""The same numbers on an accelerator, the fused kernels against the plain code, no waiting inside a step.

`make test-gpu`, or `python tests/models/test_cuda.py`, which needs no more than torch, safetensors and pytest.
"""

from __future__ import annotations

import sys

import pytest
import torch

from loopscope.kernels.choice import implementation
from loopscope.models.batch import Batch
from loopscope.models.generate import generate
from loopscope.models.walk import Walk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]
LOW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
FAMILIES = ["ouro", "huginn", "retrofit_llama", "retrofit_olmo", "nanbeige", "hrm_text:attention=causal", "loopus"]
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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_never_waits_for_the_device(golden_model, family):
    model = golden_model(family, dtype=torch.bfloat16).to("cuda")
    with torch.no_grad():
        walk = Walk.of(model, Batch.from_rows(ROWS))
        walk.advance()
        torch.cuda.set_sync_debug_mode("error")
        try:
            state = walk.advance()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert state.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_generation_equals_reference(golden_model, family):
    model = golden_model(family).to("cuda")
    options = {"max_new_tokens": 8, "depth": 3, "source_rows": [3, 4, 5], "eos_ids": []}
    assert generate(model, ROWS, **options) == generate(model, ROWS, impl="reference", **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_with_and_without_kernels(golden_model, family):
    model = golden_model(family, dtype=torch.bfloat16).to("cuda")
    batch = Batch.from_rows(ROWS, source_rows=[1, 2, 3])
    valid, positions = batch.attention_mask, torch.tensor([[2, 0], [0, 6], [0, 2]])
    found = model.states(batch, [1, 2])
    with torch.no_grad():
        logits = model.readout(found[1], positions)
    with implementation("reference"), torch.no_grad():
        expected, expected_logits = model.states(batch, [1, 2]), model.readout(found[1], positions)
    for t, tolerance in ((1, 0.01), (2, 0.02)):
        assert (found[t] - expected[t])[valid].float().norm() <= tolerance * expected[t][valid].float().norm()
    assert (logits - expected_logits).float().norm() <= 0.01 * expected_logits.float().norm()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 5e-5), (torch.float64, 1e-10)])
def test_a_readout_at_positions(golden_model, family, dtype, atol):
    model = golden_model(family).to("cuda")
    batch = Batch.from_rows(ROWS, source_rows=[1, 2, 3])
    state, positions = model.states(batch, [2])[2], torch.tensor([[1, 3], [0, 6], [0, 2], [2, 0]])
    with torch.no_grad():
        everything = model.readout(state, dtype=dtype)
        for where in (positions, positions.cuda()):
            found = model.readout(state, where, dtype)
            expected = everything[positions[:, 0], positions[:, 1]]
            torch.testing.assert_close(found, expected, rtol=0, atol=atol)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-m", "gpu", "-p", "no:cacheprovider"]))
