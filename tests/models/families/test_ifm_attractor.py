"""IFM's looped models and Attractor against the reference outputs on tiny checkpoints in the published layout."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.families.ifm_looped import DiagonalInjection, Experts, IfmLooped, IfmLoopedConfig
from loopscope.models.generate import generate
from loopscope.models.layers.positions import KeyValueCache
from loopscope.models.load import load_model
from loopscope.models.walk import Walk

IFM = ("ifm_p1_ouro_injection", "ifm_p1_huginn", "ifm_p1_moe_middle", "ifm_p1_split_hl", "ifm_p2_linear")
ATTRACTOR = ("attractor", "attractor_2fp")
RATIO = {torch.float32: 1e-5, torch.float64: 1e-6}


@pytest.fixture(scope="module")
def dump(golden_folder):
    return lambda family, case: load_file(golden_folder(family) / f"ref_{case}.safetensors")


@pytest.fixture(scope="module")
def model_for(golden_folder):
    def load(family, dtype=torch.float32, **args):
        return load_model(str(golden_folder(family)), model_args=args, dtype=dtype)

    return load


def start(model, tensors, mask):
    """A walk from the first state of the dump."""
    batch = Batch(tensors["input_ids"], mask, initial_state=tensors.get("s0", tensors.get("s0_H")))
    walk = Walk.of(model, batch)
    if "s0_L" in tensors:
        walk.carry = tensors["s0_L"].to(model.dtype)
    return walk


def off(found, expected, mask):
    return ((found - expected)[mask].abs().max() / expected[mask].abs().max()).item()


@pytest.mark.parametrize("family", [*IFM, *ATTRACTOR])
@pytest.mark.parametrize("case", ["plain", "rightpad", "plain_fp64"])
@pytest.mark.parametrize("differentiable", [False, True])
def test_states_and_logits_after_1_to_6_loops(dump, model_for, family, case, differentiable):
    expected, dtype = dump(family, case), torch.float64 if case.endswith("fp64") else torch.float32
    ids = expected["input_ids"]
    mask = torch.ones_like(ids, dtype=torch.bool)
    if "lengths" in expected:
        mask = torch.arange(ids.shape[1]) < expected["lengths"][:, None]
    elif "attention_mask" in expected:
        mask = expected["attention_mask"].bool()
    states = {"state": expected.get("raw", expected.get("z_H")), "carry": expected.get("z_L")}
    with torch.set_grad_enabled(differentiable):
        walk = start(model_for(family, dtype), expected, mask)
        for depth in range(1, 7):
            walk.advance()
            for name, wanted in states.items():
                assert wanted is None or off(getattr(walk, name), wanted[depth - 1], mask) < RATIO[dtype]
            assert off(walk.read(), expected["logits"][depth - 1], mask) < RATIO[dtype]


@pytest.mark.parametrize("family", [*IFM, *ATTRACTOR])
def test_bfloat16_stays_within_its_rounding(dump, model_for, family):
    expected = dump(family, "plain")
    with torch.no_grad():
        walk = start(model_for(family, torch.bfloat16), expected, torch.ones_like(expected["input_ids"]).bool())
        wanted = expected.get("raw", expected.get("z_H"))[0]
        error = (walk.advance().float() - wanted).norm() / wanted.norm()
    assert 0 < error < 8 * 2**-8
    assert bool(walk.read().isfinite().all())


def test_the_noise_by_question_is_that_of_part_two_and_by_official_that_of_a_first_row(dump, model_for):
    model, expected = model_for("ifm_p2_linear"), dump("ifm_p2_linear", "identity")
    rows = expected["example_ids"].tolist()
    batch = Batch(expected["input_ids"], torch.ones_like(expected["input_ids"]), source_rows=rows)
    drawn = model.embed(batch).state
    # The hash magnifies the last bit of a sine, which other builds of torch compute otherwise.
    assert ((drawn - expected["s0"]).abs() > 1e-3).float().mean() < 0.2
    walk = Walk.of(
        model, Batch(expected["input_ids"], torch.ones_like(expected["input_ids"]), initial_state=expected["s0"])
    )
    assert off(walk.to(6).read(), expected["logits"][5], batch.attention_mask) < 1e-5
    object.__setattr__(model.initial_state, "rule", "official")
    plain = dump("ifm_p2_linear", "plain")
    first = model.embed(Batch.of(plain["input_ids"])).state
    assert ((first[0] - plain["s0"][0]).abs() > 1e-3).float().mean() < 0.2
    assert torch.equal(first[0, :3], first[1, :3])


@pytest.mark.parametrize("family", ["ifm_p1_huginn", "ifm_p1_split_hl"])
def test_a_row_does_not_depend_on_its_neighbours(model_for, family):
    model, rows = model_for(family), [[1, 2, 3, 4, 5], [6, 7], [9, 9, 9]]
    together = Walk.of(model, Batch.from_rows(rows, source_rows=[8, 2, 8])).to(3)
    for index, row in enumerate(rows):
        alone = Walk.of(model, Batch.from_rows([row], source_rows=[[8, 2, 8][index]])).to(3)
        assert (together.state[index, : len(row)] - alone.state[0]).abs().max() < 1e-5


def test_terminal_keys_of_part_two(dump, model_for):
    expected, plain = dump("ifm_p2_linear", "terminal_kv"), dump("ifm_p2_linear", "identity")
    ids, found = expected["input_ids"], {}
    for terminal in (False, True):
        model, cache, logits = model_for("ifm_p2_linear", terminal_keys=terminal), KeyValueCache(9), []
        for first, last in [(0, 5), (5, 8), (8, 9)]:
            cache.used, part = last, slice(first, last)
            positions = torch.arange(first, last).expand(2, -1)
            batch = Batch(ids[:, part], torch.ones_like(ids[:, part]), positions, initial_state=plain["s0"][:, part])
            with torch.no_grad():
                context = model.embed(batch, cache)
                logits.append(model.readout_cached(Walk(model, context).to(5).state, context))
        found[terminal] = torch.cat(logits, 1)
    everything = torch.ones(2, 4, dtype=torch.bool)
    assert off(found[1][:, 5:], expected["logits"], everything) < 1e-5
    assert off(found[0], plain["logits"][4], torch.ones(2, 9, dtype=torch.bool)) < 1e-5


@pytest.mark.parametrize("family", ["ifm_p1_ouro_injection", "ifm_p1_huginn", "ifm_p1_moe_middle", "attractor"])
def test_kept_keys_choose_the_tokens_of_whole_passes(model_for, family):
    asked = {"max_new_tokens": 4, "depth": 3, "source_rows": [4, 5], "eos_ids": []}
    found = [generate(model_for(family), [[5, 9, 1], [7]], impl=impl, **asked) for impl in ("cached", "reference")]
    assert found[0] == found[1]


def test_two_states_are_generated_from_whole_prefixes(model_for):
    model = model_for("ifm_p1_split_hl")
    assert generate(model, [[5, 9, 1], [7]], max_new_tokens=3, source_rows=[4, 5], eos_ids=[]).tokens
    assert (model.trained_depth, model.config.loop_times) == (2, 8)


SMALL = {
    "arch": "huginn", "num_layers": 6, "model_dim": 16, "num_heads": 2, "ffn_hidden_dim": 24, "vocab_size": 30,
    "swiglu": True, "apply_rmsnorm": True, "rope_base": 1e6, "loop_times": 8, "huginn_recurrent_layers": 4,
}  # fmt: skip


def small(**fields):
    torch.manual_seed(0)
    model = IfmLooped(IfmLoopedConfig.read({"model": SMALL | fields})).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.requires_grad_(False)


def test_shared_states_and_repeats_follow_their_equations():
    shared = small(huginn_hierarchical_state="shared_hl", huginn_state_init="normal")
    split = small(huginn_hierarchical_state="split_hl", huginn_state_init="normal", huginn_split_module_repeats=2)
    for model, slow, fast, repeats in ((shared, range(1, 5), range(1, 5), 1), (split, range(1, 3), range(3, 5), 2)):
        context = model.embed(Batch.from_rows([[1, 2, 3]]))

        def applied(x, layers, model=model, context=context, repeats=repeats):
            x = model.inject(x, context.injection)
            for _ in range(repeats):
                for index in layers:
                    x = model.run([model.layers[index]], x, context.extra)
            return x

        high, low = context.state, context.carry
        for _ in range(3):
            low = applied(low + high, fast)
        high = applied(high + low, slow)
        state, carry = model.step(context.state, context, carry=context.carry)
        assert torch.equal(state, high)
        assert torch.equal(carry, low)


def test_the_orthogonal_injection_leaves_nothing_along_the_term():
    module = DiagonalInjection(8, 1e-12).double()
    torch.nn.init.normal_(module.input_adapter.weight)
    s, e = torch.randn(2, 3, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    v = module.term(e)
    rest = module(s, v) - v
    assert (rest * v).sum(-1).abs().max() < 1e-10
    decayed = torch.exp(-torch.nn.functional.softplus(module.dt_bias) * torch.exp(module.A_log)) * s
    across = decayed - rest
    assert (across - v * (across * v).sum(-1, keepdim=True) / (v * v).sum(-1, keepdim=True)).abs().max() < 1e-10


def test_experts_are_a_weighted_sum_of_the_chosen():
    model = small(num_experts=5, num_activated_experts=2, expert_inter_dim=6)
    experts = model.layers[0].moe
    assert isinstance(experts, Experts)
    x = torch.randn(1, 4, 16, dtype=torch.float64)
    for found, token in zip(experts(x)[0], x[0], strict=True):
        scores = torch.sigmoid(experts.router.weight @ token)
        best = scores.argsort(descending=True)[:2]
        total = torch.zeros(16, dtype=torch.float64)
        for n in best.tolist():
            gate, up = (w[6 * n : 6 * n + 6] @ token for w in (experts.experts.weight1, experts.experts.weight3))
            down = experts.experts.weight2[16 * n : 16 * n + 16]
            total += scores[n] / scores[best].sum() * (down @ (torch.nn.functional.silu(gate) * up))
        assert (found - total).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"arch": "gekko"}, "arch 'gekko' is not supported"),
        ({"arch": "transformer", "loop_times": 1}, "loop_times 1: the model is not looped"),
        ({"arch": "transformer", "loop_start_layer": 1}, "loop_start_layer 1 is not supported, only 0"),
        ({"swiglu": False}, "swiglu False is not supported, only True"),
        ({"swiglu": None}, "swiglu is missing"),
        ({"qknorm": True}, "qknorm True is not supported"),
        ({"num_shared_experts": 1}, "num_shared_experts 1 is not supported"),
        ({"moe_router_scaling_factor": 2.0}, "moe_router_scaling_factor 2.0 is not supported, only null"),
        ({"dense_prelude_input_injection": "diagonal"}, "dense_prelude_input_injection 'diagonal' is not supported"),
        ({"rope_head_dim": 4}, "rope_head_dim 4 is not supported"),
        ({"huginn_prelude_orthogonal": True, "huginn_input_injection": "linear"}, "huginn_prelude_orthogonal needs"),
        ({"huginn_hierarchical_state": "split_hl", "huginn_state_init": "input"}, "not supported with two states"),
        ({"num_experts": 4}, "0 experts cannot be active"),
    ],
)
def test_what_the_facts_do_not_cover_is_refused_in_one_line(fields, line):
    with pytest.raises(LoopscopeError, match=line) as refused:
        IfmLoopedConfig.read({"model": SMALL | fields})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("family", ATTRACTOR)
def test_the_published_solver(dump, model_for, family):
    model, expected = model_for(family), dump(family, "solver")
    found = model.solve(Batch.of(expected["input_ids"]))
    assert found.iterations == expected["iters"]
    assert found.residual == pytest.approx(expected["rel_residual"].item(), rel=0.02)
    assert (found.state - expected["raw"]).abs().max() / expected["raw"].abs().max() < 1e-4
    steps = dump(family, "anderson")
    for count in range(1, 9):
        at = model.solve(Batch.of(steps["input_ids"]), max_iter=count, min_iter=0, tol=0.0)
        assert at.iterations == count
        assert (at.state - steps["raw"][count - 1]).abs().max() / steps["raw"][count - 1].abs().max() < 1e-4


def test_a_fixed_point_of_attractor_is_half_the_core_of_its_sum(model_for):
    model = model_for("attractor", torch.float64)
    context = model.embed(Batch.from_rows([[1, 2, 3, 4]]))
    y = Walk(model, context).to(200).state
    core = model.run(model.transformer["core_block"], y + context.injection, context.extra)
    assert (core - 2 * y).abs().max() < 1e-6


def test_random_weights_of_an_offset_norm_are_norms_of_one(golden_folder):
    drawn = load_model(str(golden_folder("ifm_p1_moe_middle")), model_args={"random_weights": True})
    assert not drawn.output.final_norm.weight.any()
    assert bool(Walk.of(drawn, Batch.from_rows([[1, 2, 3]])).to(20).read().isfinite().all())
