"""Generation: kept keys give the tokens and logits of teacher forcing, at any depth, for every family."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from loopscope.models.batch import Batch
from loopscope.models.families.layer_loop import LayerLoop, LayerLoopConfig
from loopscope.models.generate import Sampler, generate

PROMPTS = [[5, 9, 1, 60, 33, 2, 17], [7, 8], [200, 3, 3, 90], [11]]
FAMILIES = [
    "ouro",
    "huginn",
    "retrofit_llama",
    "retrofit_olmo",
    "loop",
    "nanbeige",
    "hrm_text",
    "hrm_text:attention=causal",
    "loopus",
]


@pytest.fixture(scope="module")
def model_of(golden_model, randomise):
    def build(family):
        if family != "loop":
            return golden_model(family)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
        rest = {"num_key_value_heads": 2, "vocab_size": 256, "rope_theta": 1e4, "max_position_embeddings": 64}
        model = randomise(LayerLoop(LayerLoopConfig.read(sizes | rest, chosen={"loop": "1-2"})))
        model.prepare()
        return model

    return build


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=0.9, top_k=40, top_p=0.95, seed=4)])
def test_cached_equals_reference(model_of, family, depth, sampler):
    model = model_of(family)
    options = {"max_new_tokens": 12, "depth": depth, "sampler": sampler, "source_rows": [3, 4, 5, 6], "eos_ids": []}
    cached = generate(model, PROMPTS, **options)
    assert cached == generate(model, PROMPTS, impl="reference", **options)
    assert [len(row) for row in cached.tokens] == [12] * 4
    assert len({tuple(row) for row in cached.tokens}) > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_teacher_forcing(model_of, family):
    model = model_of(family)
    rows = [3, 4, 5, 6]
    generated = generate(model, PROMPTS, max_new_tokens=8, depth=4, source_rows=rows, eos_ids=[])
    for prompt, new, row in zip(PROMPTS, generated.tokens, rows, strict=True):
        forced = Batch.from_rows([prompt + new], source_rows=[row], prompt_lengths=[len(prompt)])
        logits = model.readout(model.states(forced, [4])[4])[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == new


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_does_not_depend_on_its_company(model_of, family):
    model = model_of(family)
    options = {"max_new_tokens": 6, "depth": 2, "eos_ids": []}
    together = generate(model, PROMPTS, source_rows=[3, 4, 5, 6], **options)
    alone = generate(model, PROMPTS[1:2], source_rows=[4], **options)
    assert together.tokens[1] == alone.tokens[0]


@pytest.mark.parametrize("impl", ["cached", "reference"])
def test_rows_stop_at_their_own_end_of_sequence(model_of, impl):
    model = model_of("ouro")
    free = generate(model, PROMPTS, max_new_tokens=10, eos_ids=[])
    stop = free.tokens[2][4]
    stopped = generate(model, PROMPTS, max_new_tokens=10, eos_ids=[stop], impl=impl)
    for row, before in zip(range(4), free.tokens, strict=True):
        cut = before.index(stop) if stop in before else len(before)
        assert stopped.tokens[row] == before[:cut]
        assert stopped.finished[row] == (stop in before)


LOGITS = torch.tensor([0.5, 2.0, -1.0, 2.0, 0.0])


def chosen(sampler, uniform):
    uniforms = torch.as_tensor(uniform, dtype=torch.float64)
    return sampler.choose(LOGITS.expand(len(uniforms), 5), uniforms)


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
