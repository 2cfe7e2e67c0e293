"""The fused kernels at full size on a GPU."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from loopscope.readout import affine_path_from_states
from loopscope.readout.affine.even import EvenScales
from loopscope.readout.affine.fused.launches import FusedHead
from loopscope.readout.affine.fused.path import fused_survey
from loopscope.readout.affine.in_a_row import surveys

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
AT = (0.0, 0.25, 0.5, 0.75, 1.0)
GRID = EvenScales.of(21, AT)
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


@pytest.mark.parametrize(("tokens", "vocabulary", "length"), [(512, VOCABULARY, 8), (333, 50_001, 5)])
def test_updates_that_follow_one_another(states, tokens, vocabulary, length):
    h, h_plus, weight, _, targets = states(tokens, vocabulary, WIDTH, scale=2.0, step=0.5, device="cuda")
    made = [h, h_plus]
    while len(made) < length:
        made.append((made[-1].float() + 0.3 * torch.randn_like(made[-1], dtype=torch.float32)).to(h.dtype))
    options = {"check": False, "block_tokens": 64}
    paths = [
        affine_path_from_states(*ends, weight, None, targets, dtype=torch.float32, **options).per_token()
        for ends in pairwise(made)
    ]
    exact = affine_path_from_states(*made[-2:], weight, None, targets, dtype=torch.float64, **options).per_token()
    found, alone, true = surveys(paths, 21, AT, 2)[-1], paths[-1].survey(21, AT, 2), exact.survey(21, AT, 2)
    for name in ("gains", "derivatives", "initial"):
        ours, single = ((getattr(x, name) - getattr(true, name)).pow(2).mean().sqrt() for x in (found, alone))
        assert float(ours) <= 1.2 * float(single), name


def test_tokens_that_few_scales_cannot_follow(states):
    """Of softmaxes of one likely entry some are swept again; the others have the error of a sweep at every scale."""
    h, h_plus, weight, _, targets = states(2048, VOCABULARY, WIDTH, scale=27.0, step=0.3, device="cuda")
    few, every = (
        fused_survey(FusedHead(h, h_plus, weight, None), targets, GRID, 2, every_scale=choice)
        for choice in (False, True)
    )
    true = affine_path_from_states(h, h_plus, weight, None, targets, dtype=torch.float64, block_tokens=64).per_token()
    exact, again = true.survey(21, AT, 2).gains, few.again_T.bool()
    assert 0.01 < float(again.double().mean()) < 0.3
    torch.testing.assert_close(few.gains_TK[again], every.gains_TK[again], rtol=0, atol=1e-5)
    ours, theirs = ((found.gains_TK - exact)[~again].pow(2).mean().sqrt() for found in (few, every))
    assert float(ours) <= 1.05 * float(theirs)
