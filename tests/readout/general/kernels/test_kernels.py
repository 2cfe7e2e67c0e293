"""Every kernel of Taylor mode against the plain rule and float64, alone and in a whole readout of Huginn's kind."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from loopscope import Batch
from loopscope.kernels.choice import implementation
from loopscope.models.families.huginn import Huginn, HuginnConfig, RetrofitConfig, RetrofitLlama
from loopscope.models.layers.blocks import gated_silu_joined
from loopscope.readout import nonlinear_path_from_states
from loopscope.readout.general import layers
from loopscope.readout.general.core import Series
from loopscope.readout.general.token_derivatives import token_derivatives

SHAPES = [(1, (3, 26)), (2, (2, 3, 600)), (3, (1, 2)), (3, (2, 1100))]
HEADS = [(1, (2, 3, 7, 7, 4)), (2, (1, 2, 33, 33, 8)), (3, (1, 1, 1, 1, 2)), (3, (1, 2, 33, 33, 8))]
FEW = (2, 3, 5, 9, 4)


def randn(*shape, seed=4):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gated(both):
    return gated_silu_joined(both, plain=False)


def saturated(gate):
    c = randn(4, 1, 8)
    c[0, :, :4] = gate
    return [c]


def normed(weight, width):
    return lambda x: functional.rms_norm(x, (width,), None if weight is None else weight.to(x.dtype), 1e-6)


def heads(order, rows, heads, queries, keys, width):
    return [1.5 * randn(order + 1, rows, heads, length, width, seed=length) for length in (queries, keys, keys)]


def attention(**options):
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **options)


def masked(*shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[..., 0] = True
    return attention(attn_mask=mask)


CASES = [
    *(("_gated_silu", gated, [2.0 * randn(order + 1, *shape)]) for order, shape in SHAPES),
    *(("_gated_silu", gated, saturated(gate)) for gate in (-60.0, 20.0)),
    *(("_rms_norm", normed(randn(s[-1]), s[-1]), [randn(order + 1, *s) + 0.5]) for order, s in SHAPES),
    ("_rms_norm", normed(None, 10), [randn(4, 4, 10)]),
    *(("_attention_weights", attention(is_causal=True), heads(order, *sizes)) for order, sizes in HEADS),
    ("_attention_weights", attention(scale=0.3), heads(3, *FEW)),
    *(("_attention_weights", masked(*shape), heads(3, *FEW)) for shape in ((2, 1, 5, 9), (2, 3, 5, 9), (9,))),
]


@pytest.mark.parametrize(("kernel", "function", "coefficients"), CASES)
def test_as_close_to_float64_as_the_plain_rule(
    interpreted, launches, as_close_as_plain, kernel, function, coefficients
):
    as_close_as_plain(function, *coefficients)
    assert launches == [kernel]


def test_attention_in_pieces(interpreted, launches, as_close_as_plain, monkeypatch):
    monkeypatch.setattr(layers, "_ATTENTION_ELEMENTS", 2 * 4 * 5 * 9)
    as_close_as_plain(masked(2, 1, 5, 9), *heads(3, *FEW))
    assert len(launches) > 1


def test_a_query_that_sees_nothing_gets_nothing(interpreted):
    mask = torch.ones(5, 9, dtype=torch.bool)
    mask[2] = False
    out = attention(attn_mask=mask)(*(Series(c) for c in heads(3, *FEW))).coefficients
    assert (out[..., 2, :] == 0).all()
    assert out.isfinite().all()


def test_a_fourth_order_and_float64_take_the_plain_rule(interpreted, launches):
    c = randn(5, 2, 8)
    gated(Series(c))
    gated(Series(c[:4].double()))
    token_derivatives(c, torch.tensor([0, 1]))
    assert launches == []


@pytest.mark.parametrize(("order", "vocabulary"), [(0, 17), (1, 600), (2, 1024), (3, 1), (3, 600)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_of_tokens_from_one_pass_over_their_logits(interpreted, launches, order, vocabulary, dtype):
    c, targets = randn(order + 1, 5, vocabulary).to(dtype), torch.arange(5) % vocabulary
    found = token_derivatives(c, targets)
    assert launches == ["_logit_sums"]
    torch.testing.assert_close(found, token_derivatives(c, targets, "reference"), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("sharpness", [0.0, 100.0])
def test_flat_and_peaked_softmaxes(interpreted, sharpness):
    c = randn(4, 6, 300).double()
    c[0] *= sharpness
    targets = torch.cat([c[0, :3].argmax(1), torch.tensor([0, 7, 299])])
    expected = token_derivatives(c, targets, "reference")
    torch.testing.assert_close(token_derivatives(c, targets), expected, rtol=1e-10, atol=0.0)


def test_blocks_of_the_vocabulary_add_up(interpreted, monkeypatch):
    c, targets = randn(4, 4, 1000), torch.tensor([0, 500, 999, 3])
    monkeypatch.setattr("loopscope.readout.general.kernels._VOCABULARY_BLOCK", 128)
    monkeypatch.setattr("loopscope.readout.general.kernels._BLOCK", 64)
    expected = token_derivatives(c, targets, "reference")
    torch.testing.assert_close(token_derivatives(c, targets), expected, rtol=1e-11, atol=1e-13)


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
