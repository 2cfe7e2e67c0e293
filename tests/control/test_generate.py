"""Generation under a policy: against plain generation, the whole text at once, and attention by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import loopscope as ls
from loopscope.control import Decision, FixedDepth, FixedScale, MarginScaled, Policy, ScaledReadout, Taps
from loopscope.control.act import act_on
from loopscope.control.generate import generate
from loopscope.control.policies import exit_rule
from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.generate import Sampler
from loopscope.models.generate import generate as generate_plainly
from loopscope.models.load import load_model

GOLDEN = Path(__file__).parents[1] / "models" / "golden"
PROMPTS = [[5, 9, 1, 60, 33, 2, 17], [7, 8], [20, 3, 3, 50], [11]]
CACHED = [
    "ouro",
    "huginn",
    "retrofit_llama",
    "nanbeige",
    "hrm_text",
    "hrm_text:attention=causal",
    "loopus",
    "parcae",
    "loopformer",
]
NEW = 4
OPTIONS = {"max_new_tokens": NEW, "source_rows": [3, 4, 5, 6], "eos_ids": []}


@pytest.fixture(scope="module")
def model_of():
    held = {}

    def build(family):
        if family not in held:
            name, _, args = family.partition(":")
            held[family] = load_model(f"{GOLDEN}/{name}", model_args=args, dtype="float32")
        return held[family]

    return build


@dataclass(frozen=True)
class Scattered(Policy):
    """Stops by a digit of the state, so that neighbours stop at different loops; reads nothing but states."""

    earliest: int = 1
    name: str = "scattered"
    signals: tuple[str, ...] = ("states",)

    def decide(self, seen, memory):
        return Decision(stop=(seen.states[0][:, 0] * 1e3).long() % 3 == 0)


@pytest.mark.parametrize("family", CACHED)
def test_full_steps_and_a_fixed_depth_are_plain_generation(model_of, family):
    model, drawn = model_of(family), Sampler(temperature=0.9, top_p=0.95, seed=4)
    for policy, depth, sampler in (
        (FixedScale(1.0), 3, Sampler()),
        (FixedScale(1.0), 3, drawn),
        (FixedDepth(2), 2, Sampler()),
    ):
        plain = generate_plainly(model, PROMPTS, depth=depth, sampler=sampler, **OPTIONS)
        found = generate(model, PROMPTS, depth=3, policy=policy, sampler=sampler, **OPTIONS)
        assert (found.tokens, found.finished, found.loops) == (plain.tokens, plain.finished, [[depth] * NEW] * 4)


@pytest.mark.parametrize("family", CACHED)
def test_kept_keys_give_the_whole_text_at_once(model_of, family):
    model = model_of(family)
    options = OPTIONS | {"depth": 3, "policy": Scattered()}
    found = generate(model, PROMPTS, **options)
    assert found == generate(model, PROMPTS, impl="reference", **options)
    assert len({loops for row in found.loops for loops in row}) > 1
    alone = generate(model, PROMPTS[1:2], **options | {"source_rows": [4]})
    assert (alone.tokens[0], alone.loops[0]) == (found.tokens[1], found.loops[1])


@pytest.mark.parametrize(
    "policy",
    [FixedScale(0.5, first=2), Taps(), ScaledReadout(2, 1, 0.5), MarginScaled(2, 1, 0.5)],
    ids=lambda p: p.name,
)
@pytest.mark.parametrize("family", ["huginn", "ouro"])
def test_scales_with_kept_keys(model_of, family, policy):
    if family == "huginn" and policy.reference is not None:
        pytest.skip("its coda attends to earlier tokens as they were read, with the whole text as they were at k")
    options = OPTIONS | {"depth": 3, "policy": policy}
    model = model_of(family)
    assert generate(model, PROMPTS, **options) == generate(model, PROMPTS, impl="reference", **options)


def test_a_scaled_readout_chooses_by_the_combined_logits(model_of):
    """Token by token from plain forward passes of the whole text."""
    model, rows = model_of("ouro"), [list(prompt) for prompt in PROMPTS]
    for _ in range(NEW):
        for row in rows:
            walk = ls.Walk.of(model, Batch.from_rows([row]))
            last = torch.tensor([[0, len(row) - 1]])
            before, after = (walk.to(depth).read(last) for depth in (1, 2))
            margin = after.softmax(-1).topk(2).values.diff().abs()
            row.append(int((after + 1.5 * (1 - margin) * (after - before)).argmax()))
    found = generate(model, PROMPTS, depth=3, policy=MarginScaled(2, 1, 1.5), **OPTIONS)
    assert found.tokens == [row[-NEW:] for row in rows]
    assert found.checks == [[1] * NEW] * 4
    assert found.tokens != generate(model, PROMPTS, depth=2, **OPTIONS).tokens


@pytest.mark.parametrize(
    "policy",
    [
        exit_rule("KL", 0.05),
        exit_rule("entropy", 3.5),
        exit_rule("top-1 probability", 0.1),
        exit_rule("Ouro gate", 0.7),
    ],
    ids=lambda p: p.name,
)
def test_rules_that_read_logits_or_the_gate(model_of, policy):
    model = model_of("ouro")
    found = generate(model, PROMPTS, depth=4, policy=policy, **OPTIONS)
    assert found == generate(model, PROMPTS, depth=4, policy=policy, impl="reference", **OPTIONS)
    for loops, checks in zip(found.loops, found.checks, strict=True):
        for own, charged in zip(loops, checks, strict=True):
            if policy.name == "Ouro gate":
                assert charged == 0
            else:  # a look at every loop from the earliest on, the last of which is the answer's
                first = 1 if policy.name == "KL" else policy.earliest
                assert charged == own - first


def heads(x, attention, width, cos, sin):
    q, k, v = (
        torch.nn.functional.linear(x, p.weight.double()).reshape(len(x), -1, width)
        for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    )

    def turn(y):
        half = y.shape[-1] // 2
        return y * cos + torch.cat([-y[..., half:], y[..., :half]], -1) * sin

    return turn(q), turn(k), v


def rms(x, norm):
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight.double()


def test_latest_reads_the_last_entries_there_are(model_of):
    """Ouro by hand, in float64, token by token: keys and values of a token that stopped are those of its last loop."""
    model = model_of("ouro")
    ids = [5, 9, 1, 60, 33, 2, 17, 7, 8, 20]
    acted = act_on(model, Batch.from_rows([ids]), Scattered(), 4)
    depths = acted.loops_BS[0].tolist()
    assert len(set(depths)) > 1
    layers, width = model.model.layers, model.config.sizes.head_width
    frequencies = model.rotary
    tables = frequencies.tables(torch.arange(len(ids))[None], torch.float64)
    cos_T, sin_T = (table[0].reshape(len(ids), -1)[:, :width] for table in (tables.cos, tables.sin))
    entries = {}
    for place, token in enumerate(ids):
        state = model.model.embed_tokens.weight[token].double()[None]
        for loop in range(1, depths[place] + 1):
            x = state
            for index, layer in enumerate(layers):
                normed = rms(x, layer.input_layernorm)
                q, k, v = heads(normed, layer.self_attn, width, cos_T[place], sin_T[place])
                entries[place, loop, index] = (k, v)
                seen = [entries[other, min(loop, depths[other]), index] for other in range(place)] + [(k, v)]
                share = q.shape[1] // k.shape[1]
                keys, values = (torch.cat(part).repeat_interleave(share, 1) for part in zip(*seen, strict=True))
                weight = torch.softmax(torch.einsum("qhp,khp->hqk", q, keys) / width**0.5, -1)
                mixed = torch.einsum("hqk,khp->qhp", weight, values).reshape(1, -1)
                mixed = torch.nn.functional.linear(mixed, layer.self_attn.o_proj.weight.double())
                x = x + rms(mixed, layer.input_layernorm_2)
                normed = rms(x, layer.post_attention_layernorm)
                gate, up, down = (
                    p.weight.double() for p in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
                )
                inner = torch.nn.functional.silu(normed @ gate.T) * (normed @ up.T)
                x = x + rms(inner @ down.T, layer.post_attention_layernorm_2)
            state = rms(x, model.model.norm)
        torch.testing.assert_close(acted.state_BSD[0, place].double(), state[0], rtol=2e-5, atol=2e-5)


def test_texts_and_stop_texts():
    free = generate("toy-ouro", "Problem: There are 3 hooks.\nSolution:\n", max_new_tokens=24, eos_ids=[])
    assert free.texts is not None
    word = free.texts[0][8:12]
    cut = generate("toy-ouro", ["Problem: There are 3 hooks.\nSolution:\n"], max_new_tokens=24, eos_ids=[], stop=word)
    assert cut.texts == [free.texts[0].partition(word)[0]]
    assert len(cut.tokens[0]) < 24
    assert cut.finished == [True]


def test_what_cannot_be_is_one_line(model_of):
    ouro = model_of("ouro")
    for model, options, message in (
        (model_of("huginn"), {"policy": exit_rule("Ouro gate")}, "has no exit gate"),
        (ouro, {"policy": FixedDepth(1), "depth": 0}, "at least one loop"),
    ):
        with pytest.raises(LoopscopeError, match=message):
            generate(model, PROMPTS, max_new_tokens=2, **options)
    del ouro
    with pytest.raises(LoopscopeError, match="give tokenizer="):
        generate(model_of("parcae"), "a text", max_new_tokens=2, tokenizer=None)
