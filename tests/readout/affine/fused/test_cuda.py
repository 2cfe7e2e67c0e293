"""The fused kernels at full size on a GPU."""

from __future__ import annotations

import pytest
import torch

from loopscope.readout import affine_path_from_states
from loopscope.readout.affine.even import EvenScales
from loopscope.readout.affine.fused.path import DEFAULT, fused_surveys

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
AT = (0.0, 0.25, 0.5, 0.75, 1.0)
WIDTH, VOCABULARY = 2048, 49152


@pytest.mark.parametrize(("tokens", "vocabulary"), [(512, VOCABULARY), (333, 50_001)])
@pytest.mark.parametrize("scale", [2.0, 8.0])
def test_close_to_float64(states, plain, named, tokens, vocabulary, scale):
    made = states(tokens, vocabulary, WIDTH, scale=scale, step=0.5, device="cuda")
    examples = list(range(tokens))
    found = named(affine_path_from_states(*made, examples=examples, dtype=torch.float32).survey(21, AT, spread=True))
    true = named(
        affine_path_from_states(*made, examples=examples, dtype=torch.float64, block_tokens=64).survey(
            21, AT, spread=True
        )
    )
    by_hand = plain(*made, 21, AT)
    for name in found:
        ours, theirs = ((x[name].double() - true[name]).pow(2).mean().sqrt() for x in (found, by_hand))
        assert float(ours) <= 4.0 * float(theirs), name


def test_65536_tokens_take_no_more_than_256_mib(states):
    made = states(65_536, VOCABULARY, WIDTH, scale=2.0, device="cuda")
    path = affine_path_from_states(*made, examples=list(range(65_536)), dtype=torch.float32)
    path.survey(21, (0.0,))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    path.survey(21, (0.0,))
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - held <= 256 * 2**20


def test_repeated_bit_for_bit(states):
    made = states(4096, VOCABULARY, WIDTH, scale=2.0, device="cuda")
    path = affine_path_from_states(*made, examples=list(range(4096)), dtype=torch.float32)
    one, other = path.survey(21, AT), path.survey(21, AT)
    assert torch.equal(one.gains, other.gains)
    assert torch.equal(one.derivatives, other.derivatives)
    assert torch.equal(one.distributions.stacked(), other.distributions.stacked())


@pytest.mark.parametrize(("tokens", "vocabulary", "bias"), [(300, VOCABULARY, False), (77, 5001, True)])
def test_a_chain_of_states(states, tokens, vocabulary, bias):
    """The specialised sweep, all updates at once, against the one for all GPUs; both round the same products."""
    h, h_plus, weight, shift, targets = states(tokens, vocabulary, WIDTH, scale=3.0, step=0.5, bias=bias, device="cuda")
    chain = [h, h_plus, h, (0.9 * h_plus.float()).to(h.dtype)]
    even = EvenScales.of(21, AT)
    found = fused_surveys(chain, weight, shift, targets, even, 2, extremes=True)
    plain = fused_surveys(chain, weight, shift, targets, even, 2, extremes=True, tiles=DEFAULT)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one.gains_TK, other.gains_TK, rtol=0, atol=2e-5)
        torch.testing.assert_close(one.initial_T, other.initial_T, rtol=0, atol=2e-5)
        torch.testing.assert_close(one.spread_T, other.spread_T, rtol=1e-6, atol=0)
        for x, y in zip(one.derivatives, other.derivatives, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=2e-5 * max(1.0, float(y.abs().max())))
        torch.testing.assert_close(one.distributions.stacked(), other.distributions.stacked(), rtol=0, atol=5e-5)
