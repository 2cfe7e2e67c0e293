"""Random updates are what they say: unit RMS, BF16, logits that spread as asked, some likely labels."""

from __future__ import annotations

import pytest
import torch

from loopscope.bench.sizes import FLAT, PEAKED, TYPICAL, random_update, with_likely_targets

CPU = torch.device("cpu")


@pytest.mark.parametrize("spread", [FLAT, TYPICAL, PEAKED])
def test_logits_spread_as_asked_and_states_have_unit_rms(spread):
    update = random_update(50, 256, 3000, CPU, spread=spread)
    assert {t.dtype for t in (update.h_TD, update.h_plus_TD, update.weight_VD)} == {torch.bfloat16}
    logits = update.h_TD.double() @ update.weight_VD.double().T
    assert float(logits.std()) == pytest.approx(spread, rel=0.02)
    for state in (update.h_TD, update.h_plus_TD):
        torch.testing.assert_close(state.double().square().mean(1), torch.ones(50).double(), rtol=1e-2, atol=0)


def test_the_step_is_the_length_of_the_displacement():
    update = random_update(50, 256, 10, CPU, step=0.1)
    displacement = update.h_plus_TD.double() - update.h_TD.double()
    assert float(displacement.square().mean().sqrt()) == pytest.approx(0.1, rel=0.05)


def test_more_tokens_than_are_drawn_at_a_time_are_all_filled():
    update = random_update(1500, 8, 2100, CPU)
    assert bool((update.h_TD.abs().sum(1) > 0).all())
    assert bool((update.weight_VD.abs().sum(1) > 0).all())


def test_every_second_label_becomes_the_likeliest():
    plain = random_update(20, 16, 2500, CPU)
    update = with_likely_targets(plain)
    best = (update.h_plus_TD.float() @ update.weight_VD.float().T).argmax(1)
    assert torch.equal(update.targets_T[::2], best[::2])
    assert torch.equal(update.targets_T[1::2], plain.targets_T[1::2])
