"""Choosing tokens: greedy, filtered, and drawn with the right frequencies."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from loopscope.errors import LoopscopeError
from loopscope.models.generate import Sampler

LOGITS = torch.tensor([0.5, 2.0, -1.0, 2.0, 0.0])


def chosen(sampler, uniform):
    uniforms = torch.as_tensor(uniform, dtype=torch.float64)
    return sampler.choose(LOGITS.expand(len(uniforms), 5), uniforms)


def test_greedy_takes_the_lowest_of_equals():
    assert chosen(Sampler(), [0.99, 0.01]).tolist() == [1, 1]


def test_frequencies_follow_the_softmax():
    sampler = Sampler(temperature=0.7, seed=3)
    drawn = chosen(sampler, sampler.uniforms(1, 20000)[0])
    expected = torch.softmax(LOGITS.double() / 0.7, -1) * 20000
    assert stats.chisquare(torch.bincount(drawn, minlength=5).numpy(), expected.numpy()).pvalue > 1e-3


def test_top_k_keeps_the_likeliest():
    drawn = chosen(Sampler(temperature=1.0, top_k=3), torch.linspace(0, 1 - 1e-12, 500))
    assert sorted(set(drawn.tolist())) == [0, 1, 3]


def test_top_p_keeps_tokens_until_their_sum_reaches_p():
    probability = torch.softmax(LOGITS.double(), -1)
    two = float(probability[1] + probability[3])
    grid = torch.linspace(0, 1 - 1e-12, 500)
    assert set(chosen(Sampler(temperature=1.0, top_p=two - 1e-6), grid).tolist()) == {1, 3}
    assert set(chosen(Sampler(temperature=1.0, top_p=two + 1e-6), grid).tolist()) == {0, 1, 3}
    assert set(chosen(Sampler(temperature=1.0, top_p=1e-9), grid).tolist()) == {1}


def test_the_ends_of_the_unit_interval_choose_kept_tokens():
    sampler = Sampler(temperature=1.0, top_k=2)
    assert chosen(sampler, [0.0, 1.0]).tolist() == [1, 3]


def test_a_rows_stream_does_not_depend_on_the_others():
    sampler = Sampler(temperature=1.0, seed=11)
    assert torch.equal(sampler.uniforms(3, 8)[1, :5], sampler.uniforms(2, 5)[1])
    assert not torch.equal(sampler.uniforms(2, 5)[0], sampler.uniforms(2, 5)[1])


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_wrong_settings_get_one_line(wrong):
    with pytest.raises(LoopscopeError, match="must be"):
        Sampler(**wrong)
