"""Taylor mode through a readout of Huginn's kind on an accelerator, with its kernels and split products.

`make test-gpu`.
"""

from __future__ import annotations

import pytest
import torch

from loopscope.kernels.choice import implementation
from loopscope.models.families.huginn import Huginn, HuginnConfig
from loopscope.models.load import fill_randomly
from loopscope.readout.general.path import nonlinear_path_from_states
from loopscope.readout.general.token_derivatives import token_derivatives

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SIZES = {
    "n_embd": 528, "n_heads": 11, "intermediate_size": 1792, "n_layers_in_prelude": 0, "n_layers_in_recurrent_block": 1,
    "n_layers_in_coda": 2, "vocab_size": 5003, "block_size": 512, "mean_recurrence": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def update():
    """A model in BF16, two states, positions, targets and the sequence of each token."""
    with torch.device("meta"):
        model = Huginn(HuginnConfig.read(SIZES))
    fill_randomly(model, torch.device("cuda"), torch.bfloat16, seed=0)
    with torch.no_grad():
        model.lm_head.weight.mul_(4.0)
    model.prepare()
    g = torch.Generator("cuda").manual_seed(1)
    h = torch.randn(3, 61, 528, generator=g, device="cuda")
    h_plus = h + 0.3 * torch.randn(3, 61, 528, generator=g, device="cuda")
    positions = torch.cartesian_prod(torch.arange(3), torch.arange(2, 61, 3)).cuda()
    targets = torch.randint(0, 5003, (len(positions),), generator=g, device="cuda")
    return model, h.bfloat16(), h_plus.bfloat16(), targets, positions


def found(update, dtype, choice, alpha, impl="taylor", order=3):
    model, h, h_plus, targets, positions = update
    with implementation(choice):
        path = nonlinear_path_from_states(
            model.body_and_head(dtype), h, h_plus, targets, positions, examples=positions[:, 0], dtype=dtype, impl=impl
        )
        return path.derivatives(alpha, order).stack


@pytest.mark.parametrize("choice", ["auto", "triton"])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_as_close_to_float64_as_plain_float32(update, choice, alpha):
    exact = found(update, torch.float64, "reference", alpha)
    plain = found(update, torch.float32, "reference", alpha)
    ours = found(update, torch.float32, choice, alpha)
    for k in range(1, 4):
        errors = [float((side[k] - exact[k]).norm() / exact[k].norm()) for side in (ours, plain)]
        assert errors[0] <= 3.0 * errors[1] + 1e-7, (k, errors)


def test_float64_is_the_same_whatever_is_chosen(update):
    torch.testing.assert_close(
        found(update, torch.float64, "auto", 0.0),
        found(update, torch.float64, "reference", 0.0),
        rtol=1e-10,
        atol=1e-13,
    )


def test_agrees_with_nested_forward_mode(update):
    ours = found(update, torch.float32, "auto", 0.0, order=2)
    theirs = found(update, torch.float32, "auto", 0.0, "nested", 2)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_no_float32_copy_of_the_matrices_is_held(update):
    model = update[0]
    model._casts.clear()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    found(update, torch.float32, "auto", 0.0)
    held = torch.cuda.memory_allocated() - before
    assert held < 0.05 * sum(part.numel() * 4 for part in model.parameters())


@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_logit_sums_at_full_vocabulary(sharpness):
    g = torch.Generator("cuda").manual_seed(3)
    c = torch.randn(4, 70, 65536, generator=g, device="cuda")
    c[0] *= sharpness
    targets = torch.randint(0, 65536, (70,), generator=g, device="cuda")
    with torch.no_grad():
        expected = token_derivatives(c, targets, "reference")
        torch.testing.assert_close(token_derivatives(c, targets), expected, rtol=1e-9, atol=1e-12)
