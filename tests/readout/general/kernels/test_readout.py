"""A whole readout of Huginn's kind through the kernels, against the plain code and against float64."""

from __future__ import annotations

import pytest
import torch

from loopscope.kernels.choice import implementation
from loopscope.models import Batch
from loopscope.models.families.huginn import Huginn, HuginnConfig, RetrofitConfig, RetrofitLlama
from loopscope.readout import nonlinear_path_from_states

SIZES = {
    "n_embd": 24, "n_heads": 3, "intermediate_size": 32, "n_layers_in_prelude": 1, "n_layers_in_recurrent_block": 1,
    "n_layers_in_coda": 2, "vocab_size": 41, "block_size": 32, "mean_recurrence": 4,
    "max_position_embeddings": 32, "norm_eps": 1e-6, "num_key_value_heads": 1, "rope_theta": 100.0,
    "init_values": {"std": 0.1},
}  # fmt: skip
POSITIONS = torch.tensor([[0, 2], [0, 3], [0, 4], [1, 1], [1, 2]])
TARGETS, EXAMPLES = torch.tensor([6, 7, 8, 11, 12]), torch.tensor([0, 0, 0, 1, 1])


def _model(kind):
    if kind == "huginn":
        model = Huginn(HuginnConfig.read({name: SIZES[name] for name in list(SIZES)[:9]}))
    else:
        model = RetrofitLlama(RetrofitConfig.read(SIZES | {"qk_bias": False}))
    g = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in model.parameters():
            deviation = 0.2 if parameter.ndim == 1 else 2.0 * parameter.shape[-1] ** -0.5
            parameter.normal_(float(parameter.ndim == 1), deviation, generator=g)
    model.prepare()
    return model


@pytest.mark.parametrize("kind", ["huginn", "retrofit"])
def test_kernels_are_as_close_to_float64_as_the_plain_code(launches, kind):
    model = _model(kind)
    with implementation("reference"):
        states = model.states(Batch.from_rows([[3, 4, 5, 6, 7, 8], [9, 10, 11, 12]]), [3, 4])

    def coefficients(dtype, impl):
        with torch.no_grad(), implementation(impl):
            path = nonlinear_path_from_states(
                model.body_and_head(dtype), states[3], states[4], TARGETS, POSITIONS, examples=EXAMPLES, dtype=dtype
            )
            return path.derivatives([0.0, 0.5], 3).stack

    exact, plain = coefficients(torch.float64, "reference"), coefficients(torch.float32, "reference")
    assert launches == []
    found = coefficients(torch.float32, "triton")
    assert set(launches) == {"_gated_silu", "_rms_norm", "_attention_weights", "_logit_sums"}
    for k in range(1, 4):
        ours, theirs = ((y[k] - exact[k]).norm() / exact[k].norm() for y in (found, plain))
        assert ours <= 3.0 * theirs + 1e-6
