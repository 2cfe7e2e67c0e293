"""LoopFormer and TMLT against the published implementation's outputs; every trap tells itself apart there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.families import loopformer
from loopscope.models.families.loopformer import LoopFormer, Tmlt
from loopscope.models.families.schedule import Schedule
from loopscope.models.generate import generate
from loopscope.models.load import load_model
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk

FAMILIES = ("loopformer", "tmlt")


def off(found, expected, mask=...):
    """The largest difference, as a multiple of what is allowed: 1e-4, or 5e-6 of the largest entry."""
    return (found - expected)[mask].abs().max().item() / max(1e-4, 5e-6 * expected[mask].abs().max().item())


def largest(model, expected):
    """The largest of `off` over states and logits at every depth."""
    mask, depths = expected.attention_mask, range(1, len(expected.raw) + 1)
    states = model.states(Batch(expected.input_ids, mask), depths)
    logits = expected.logits if expected.logits.dim() == 4 else [*[None] * (len(depths) - 1), expected.logits]
    pairs = [(states[t], expected.raw[t - 1]) for t in depths]
    pairs += [(model.readout(states[t]), logits[t - 1]) for t in depths if logits[t - 1] is not None]
    return max(off(found, wanted, mask) for found, wanted in pairs)


@pytest.fixture(scope="module")
def model_of(golden_folder):
    return lambda family, chosen="": load_model(golden_folder(family), model_args=chosen)


@pytest.mark.parametrize("case", ["plain", "rightpad"])
@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_logits_of_the_published_code(reference, model_of, family, case):
    model, expected = model_of(family), reference(family, case)
    assert largest(model, expected) < 1
    if case == "plain":
        assert torch.equal(model.embed(Batch.of(expected.input_ids)).state, expected.s0)
        for depth, condition in enumerate(expected.cond):
            assert off(model.condition(depth), condition) < 1


@pytest.mark.parametrize("budget", range(1, 7))
def test_budgets_of_the_published_code(reference, model_of, budget):
    expected = reference("loopformer", "budget")
    model = model_of("loopformer", f"budget={budget}")
    state = model.states(Batch.of(expected.input_ids), [budget])[budget]
    assert off(state, expected.tensors[f"raw_M{budget}"]) < 1
    assert off(model.readout(state), expected.tensors[f"logits_M{budget}"]) < 1
    assert (model.trained_depth, model.trained_clock) == (budget, budget)
    # A budget is not a prefix of the eight steps.
    prefix = model_of("loopformer").states(Batch.of(expected.input_ids), [budget])[budget]
    assert off(prefix, expected.tensors[f"raw_M{budget}"]) > 100


def test_schedule_of_the_published_code(reference, model_of):
    expected = reference("loopformer", "schedule")
    model = model_of("loopformer", "schedule=1/2+1/4+0.125+1/8")
    assert largest(model, expected) < 1
    assert torch.equal(torch.tensor(model.config.schedule.sizes), expected.steps)
    assert max(off(model.condition(t), condition) for t, condition in enumerate(expected.cond)) < 1


def test_a_schedule_goes_on_with_its_last_step():
    schedule = Schedule.chosen({"schedule": "1/2+1/4"})
    assert [schedule.size(depth) for depth in range(4)] == [0.5, 0.25, 0.25, 0.25]
    assert schedule.within == 2
    assert Schedule.chosen({"schedule": "1/2+1/2+1/8"}).within == 2
    assert Schedule.chosen({}).sizes == (0.125,) * 8
    assert [Schedule.chosen({"budget": str(m)}).within for m in (1, 3, 7, 10, 1000)] == [1, 3, 7, 10, 1000]


@pytest.mark.parametrize(
    ("chosen", "line"),
    [
        ("budget=0", "budget=0 is not a number of steps from 1 to 1000"),
        ("budget=1001", "from 1 to 1000"),
        ("budget=x", "budget=x is not a number"),
        ("schedule=1/2+0", "'0' is no step above 0 and up to 1"),
        ("schedule=1/0", "'1/0' is no step"),
        ("schedule=1/2+", "'' is no step"),
        ("schedule=2", "'2' is no step"),
        ("schedule=nan", "'nan' is no step"),
        ("budget=2,schedule=1/2", "give one of them"),
        ("steps=2", "LoopFormer has no option 'steps': choose budget, schedule"),
    ],
)
def test_choices_that_make_no_sense_get_one_line(model_of, chosen, line):
    with pytest.raises(LoopscopeError, match=line.replace("+", r"\+")) as caught:
        model_of("loopformer", chosen)
    assert "\n" not in str(caught.value)


def test_tmlt_has_no_schedule(model_of):
    with pytest.raises(LoopscopeError, match="has no option 'budget'"):
        model_of("tmlt", "budget=4")


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_within_its_rounding(reference, golden_folder, family):
    expected = reference(family, "plain")
    model = load_model(golden_folder(family), dtype="bfloat16")
    states = model.states(Batch.of(expected.input_ids), range(1, len(expected.raw) + 1))
    for t, state in states.items():
        difference = (state.float() - expected.raw[t - 1]).abs().max() / expected.raw[t - 1].abs().max()
        assert 0 < difference < 8 * 2**-8


def _rows(tensors, name, change):
    return tensors | {key: change(value) for key, value in tensors.items() if key.endswith(name)}


def _swap_halves(x, dim=0):
    return torch.cat(x.chunk(2, dim)[::-1], dim).contiguous()


def _zeros(x):
    return torch.zeros_like(x)


def _less_one(bias):
    gates, scales = bias.chunk(2)
    return torch.cat([gates, scales - 1])


def _without_silu(model):
    for block in model._blocks():
        block.adaLN_modulation[0] = nn.Identity()
    return model


def _conditioned(model, condition):
    model.condition = condition
    return model


def _timed(model, time):
    return model.gpt.time_embedder(torch.tensor(float(time))) + model.gpt.dt_embedder(torch.tensor(0.125))


def _normed_with_weight(model, patch):
    normed, weight = loopformer._normed, model.gpt.transformer["norm_f"].weight
    patch.setattr(loopformer, "_normed", lambda x: normed(x) * weight)
    return model


TRAPS = {
    "gates and scales swapped": lambda write, patch: load_model(
        write("loopformer", lambda held: _rows(held, ("_modulation.1.weight", "_modulation.1.bias"), _swap_halves))
    ),
    "scale without 1 +": lambda write, patch: load_model(
        write("loopformer", lambda held: _rows(held, "_modulation.1.bias", _less_one))
    ),
    "no silu before the modulation": lambda write, patch: _without_silu(load_model(write("loopformer"))),
    "sin before cos": lambda write, patch: load_model(
        write("loopformer", lambda held: _rows(held, "mlp.0.weight", lambda x: _swap_halves(x, 1)))
    ),
    "no embedding of the step's size": lambda write, patch: load_model(
        write("loopformer", lambda held: _rows(held, ("dt_embedder.mlp.2.weight", "dt_embedder.mlp.2.bias"), _zeros))
    ),
    "step number as time": lambda write, patch: _conditioned(
        found := load_model(write("loopformer")), lambda depth: _timed(found, depth)
    ),
    "time after the step": lambda write, patch: _conditioned(
        found := load_model(write("loopformer")), lambda depth: _timed(found, (depth + 1) / 8)
    ),
    "norm_f's weight in the blocks": lambda write, patch: _normed_with_weight(load_model(write("loopformer")), patch),
    "tanh gelu": lambda write, patch: (
        patch.setattr(loopformer.functional, "gelu", lambda x, gelu=nn.functional.gelu: gelu(x, approximate="tanh")),
        load_model(write("loopformer")),
    )[1],
    "eps 1e-5": lambda write, patch: (
        patch.setattr(loopformer, "EPS", 1e-5),
        load_model(write("loopformer")),
    )[1],
}
FAINT = {"tanh gelu": 5, "eps 1e-5": 2}
"""How many times the allowed difference they make; all others make a hundred times."""


@pytest.mark.parametrize("trap", TRAPS)
def test_the_published_outputs_tell_a_trap_apart(reference, golden_variant, monkeypatch, trap):
    found = TRAPS[trap](golden_variant, monkeypatch)
    assert largest(found, reference("loopformer", "plain")) > FAINT.get(trap, 100)


@pytest.mark.parametrize(
    "time", [lambda depth: depth + 1, lambda depth: depth / 8], ids=["counted from 1", "a fraction of eight"]
)
def test_tmlt_counts_whole_steps_from_zero(reference, model_of, time):
    model = model_of("tmlt")
    _conditioned(model, lambda depth: model.gpt.time_embedder(torch.tensor(float(time(depth)))))
    assert largest(model, reference("tmlt", "plain")) > 100


def test_a_training_checkpoint_lacks_the_prefix(reference, golden_variant):
    bare = golden_variant("loopformer", lambda held: {name.removeprefix("gpt."): held[name] for name in held})
    assert largest(load_model(bare), reference("loopformer", "plain")) < 1


def test_a_stored_head_must_be_the_embedding(golden_variant):
    tied = golden_variant(
        "loopformer", lambda held: held | {"gpt.lm_head.weight": held["gpt.transformer.wte.weight"].clone()}
    )
    assert load_model(tied).card.parameters == 167744
    other = golden_variant(
        "loopformer", lambda held: held | {"gpt.lm_head.weight": held["gpt.transformer.wte.weight"] + 1}
    )
    with pytest.warns(UserWarning, match="stores different values"):
        load_model(other)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_other_of_the_two_is_refused(golden_variant, family):
    other = next(name for name in FAMILIES if name != family)
    architectures = ... if other == "tmlt" else ["LoopFormerGPTForCausalLM"]
    line = "holds the tensors 'gpt.dt_embedder" if other == "tmlt" else "lacks the tensors 'gpt.dt_embedder"
    with pytest.raises(LoopscopeError, match=line):
        load_model(golden_variant(family, model_type=other, architectures=architectures))


def test_biases_where_the_configuration_says_so(golden_variant):
    def biased(held):
        names = [name for name in held if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))]
        return held | {name.replace("weight", "bias"): torch.zeros(len(held[name])) for name in names}

    plain = load_model(golden_variant("loopformer"))
    with_zeros = load_model(golden_variant("loopformer", biased, bias=True))
    batch = Batch.from_rows([[1, 2, 3]])
    assert torch.equal(plain.states(batch, [2])[2], with_zeros.states(batch, [2])[2])
    with pytest.raises(LoopscopeError, match="lacks the tensors"):
        load_model(golden_variant("loopformer", bias=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_either_side_does_not_change_a_row(model_of, family):
    model, rows = model_of(family), [[1, 2, 3, 4, 5], [6, 7]]
    alone = [model.states(Batch.from_rows([row]), [3])[3][0] for row in rows]
    for padding in ("right", "left"):
        batch = Batch.from_rows(rows, padding=padding)
        state = model.states(batch, [3])[3]
        for index, own in enumerate(alone):
            assert (state[index][batch.attention_mask[index]] - own).abs().max() < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_without_a_cache(model_of, family):
    model = model_of(family)
    found = generate(model, [[1, 2, 3], [4]], max_new_tokens=3, eos_ids=[])
    walk = Walk.of(model, Batch.from_rows([[1, 2, 3, *found.tokens[0][:2]]])).to(8)
    assert found.tokens[0] == walk.read().argmax(-1)[0, 2:].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_a_looped_model(golden_folder, model_of, family):
    model = model_of(family)
    assert isinstance(model, LoopedModel)
    assert isinstance(model, LoopFormer if family == "loopformer" else Tmlt)
    assert (model.family, model.trained_depth, model.card.trained_clock) == (family, 8, 8)
    assert model.head is None
    assert (model.eos_ids, model.max_positions) == ((255,), 48)
    drawn = load_model(golden_folder(family), model_args={"random_weights": True})
    assert drawn.card.parameters == model.card.parameters == {"loopformer": 167744, "tmlt": 85008}[family]
    state = drawn.states(Batch.from_rows([[1, 2, 3]]), [20])[20]
    assert bool(state.isfinite().all())
    with pytest.raises(LoopscopeError, match="49 tokens are more than"):
        model.embed(Batch.from_rows([[1] * 49]))
