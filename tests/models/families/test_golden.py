"""Every family against the outputs of its published code on a tiny checkpoint in the published layout."""

from __future__ import annotations

import pytest
import torch

from loopscope.models.batch import Batch
from loopscope.models.layers.positions import KeyValueCache
from loopscope.models.load import load_model
from loopscope.models.protocol import exit_gate_of, exit_probabilities, state_at_exit
from loopscope.models.walk import Walk

DRAWN = ("huginn", "retrofit_llama", "retrofit_olmo", "parcae")
"""Families whose first state is drawn: the dumps hold it."""
CASES = [
    *(("ouro", case) for case in ("plain", "rightpad", "leftpad", "leftpad_pos")),
    *((family, case) for family in DRAWN for case in ("plain", "rightpad")),
    *((family, "leftpad") for family in DRAWN[:3]),
    *((family, "plain_unit_state") for family in DRAWN[1:3]),
    ("parcae", "plain_zero_state"),
    *(("nanbeige", case) for case in ("plain", "rightpad", "leftpad", "plain_skip_flipped")),
    *(("hrm_text", case) for case in ("plain", "rightpad", "prefix")),
    *((family, case) for family in ("loopus", "loopformer", "tmlt") for case in ("plain", "rightpad")),
]


@pytest.fixture
def model_for(golden_folder, golden_variant):
    """The model that a case is about."""

    def load(family, case, dtype="float32"):
        folder = golden_folder(family)
        if case == "plain_skip_flipped":
            folder = golden_variant(family, skip_loop_final_norm=True)
        attention = {"attention": "prefix" if case == "prefix" else "causal"} if family == "hrm_text" else None
        return load_model(str(folder), model_args=attention, dtype=dtype)

    return load


def settings_of(family, case, expected):
    return {
        "initial": expected.s0 if family in DRAWN else None,
        # The published code ignores the mask there: what pads on the left is text.
        "everything": family in DRAWN and case == "leftpad",
        "prompt_lengths": expected.token_type_ids.sum(1) if case == "prefix" else None,
    }


@pytest.mark.parametrize(("family", "case"), CASES)
def test_states_and_logits_at_every_depth(reference, distance, model_for, family, case):
    expected = reference(family, case)
    with torch.no_grad():
        assert distance(model_for(family, case), expected, **settings_of(family, case, expected)) < 5e-6


@pytest.mark.parametrize("family", dict.fromkeys(family for family, _ in CASES))
def test_with_elementary_operations_alone(reference, distance, model_for, family):
    expected = reference(family, "plain")
    assert distance(model_for(family, "plain"), expected, **settings_of(family, "plain", expected)) < 5e-6


@pytest.mark.parametrize("family", dict.fromkeys(family for family, _ in CASES))
def test_bfloat16_stays_within_its_rounding(reference, model_for, family):
    """A few roundings to BF16 in norm after one loop; every loop amplifies what the one before rounded away."""
    expected = reference(family, "plain")
    model = model_for(family, "plain", "bfloat16")
    given = settings_of(family, "plain", expected)
    walk = Walk.of(model, Batch(expected.input_ids, expected.attention_mask, initial_state=given["initial"]))
    states = next(expected.tensors[name] for name in ("hidden", "raw", "z_H") if name in expected.tensors)
    with torch.no_grad():
        for wanted in states[:2]:
            error = (walk.advance().float() - wanted).norm() / wanted.norm()
            assert walk.state.dtype == torch.bfloat16
            assert 0 < error < 8 * 2**-8


@pytest.mark.parametrize("family", ["ouro", "huginn", "retrofit_llama", "retrofit_olmo"])
def test_kept_keys_and_values(reference, model_for, family):
    expected, model = reference(family, "cache"), model_for(family, "cache")
    cache, logits = KeyValueCache(12), []
    with torch.no_grad():
        for start, stop in [(0, 8), (8, 9), (9, 10), (10, 11), (11, 12)]:
            ids, cache.used = expected.input_ids[:, start:stop], stop
            initial = expected.s0[:, start:stop] if family in DRAWN else None
            batch = Batch(ids, torch.ones_like(ids), torch.arange(start, stop)[None], initial_state=initial)
            context = model.embed(batch, cache)
            logits.append(model.readout_cached(Walk(model, context).to(4).state, context))
    assert (torch.cat(logits, dim=1) - expected.logits_T4).abs().max() < 1e-4
    form = "{:02d}" if family == "ouro" else "{}"
    for slot in cache.slots():
        keys, values = cache.read(slot)
        assert (keys - expected.tensors["key_" + form.format(slot)]).abs().max() < 1e-4
        assert (values - expected.tensors["value_" + form.format(slot)]).abs().max() < 1e-4


@pytest.mark.parametrize("case", ["plain", "leftpad"])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_exits_of_ouro(reference, model_for, case, dtype):
    expected, model = reference("ouro", case), model_for("ouro", case)
    mask = expected.attention_mask
    states = list(model.states(Batch(expected.input_ids, mask), range(1, 9)).values())
    logits = [model.readout(state) for state in states]
    for budget in (4, 8):
        gates = [model.gate_logits(state, dtype) for state in states[:budget]]
        pdf, cdf = exit_probabilities(gates), model.exit_gate.compared(gates)
        assert (pdf - expected.tensors[f"exit_pdf_T{budget}"])[mask].abs().max() < 5e-5
        assert (cdf - expected.tensors[f"exit_cdf_T{budget}"])[mask].abs().max() < 5e-5
    gates = [model.gate_logits(state, dtype) for state in states[:4]]
    pdf, cdf = exit_probabilities(gates), model.exit_gate.compared(gates)
    weighted = sum(made * pdf[..., t : t + 1].to(made.dtype) for t, made in enumerate(logits[:4]))
    assert (weighted - expected.logits_weighted_T4)[mask].abs().max() < 5e-5
    for threshold in (0.3, 0.5, 0.7, 0.9):
        depth = model.exit_gate.exit_depth(cdf, threshold)
        assert torch.equal(depth[mask] - 1, expected.tensors[f"exit_step0_thr{threshold}_T4"][mask])
        found = model.readout(state_at_exit(states[:4], depth))
        assert (found - expected.tensors[f"logits_thr{threshold}_T4"])[mask].abs().max() < 5e-5


def test_confidence_of_loopus(reference, model_for):
    expected, model = reference("loopus", "plain"), model_for("loopus", "plain")
    gate = exit_gate_of(model)
    assert (gate.threshold, gate.budget, gate.rule) == (0.9, 4, "threshold")
    states = model.states(Batch.of(expected.input_ids), range(1, 5)).values()
    compared = gate.compared([gate.logits(state, None) for state in states])
    # The published code reads the last column.
    assert (compared[:, -1] - expected.q[:4].T).abs().max() < 1e-5
    for threshold in (0.5, 0.65, 0.75):
        above = [t for t in range(1, 5) if expected.q[t - 1, 0] > threshold]
        assert gate.exit_depth(compared, threshold)[0, -1] == (above[0] if above else 4)


@pytest.mark.parametrize("budget", range(1, 7))
def test_budgets_of_loopformer(reference, golden_folder, budget):
    expected = reference("loopformer", "budget")
    model = load_model(str(golden_folder("loopformer")), model_args={"budget": budget}, dtype="float32")
    state = model.states(Batch.of(expected.input_ids), [budget])[budget]
    for found, name in ((state, "raw"), (model.readout(state), "logits")):
        wanted = expected.tensors[f"{name}_M{budget}"]
        assert (found - wanted).abs().max() / wanted.abs().max() < 5e-6
    assert (model.trained_depth, model.trained_clock) == (budget, budget)


def test_schedule_of_loopformer(reference, distance, golden_folder):
    expected = reference("loopformer", "schedule")
    model = load_model(str(golden_folder("loopformer")), model_args="schedule=1/2+1/4+0.125+1/8", dtype="float32")
    with torch.no_grad():
        assert distance(model, expected) < 5e-6
    assert torch.equal(torch.tensor(model.steps), expected.steps)
    for depth, condition in enumerate(expected.cond):
        assert (model.condition(depth) - condition).abs().max() < 1e-4
