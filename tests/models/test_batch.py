"""Batches: what is accepted; rows of their own, or all in one row, whose states are those of padded rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch, Group, common_prefix, pack
from loopscope.models.layers.attention import attend, runs_unpadded, takes_varlen
from loopscope.models.layers.positions import Rotary, attention_context
from loopscope.models.protocol import LoopedModule

FAMILIES = ["ouro", "huginn", "retrofit_llama", "retrofit_olmo", "loop"]
FAMILIES += ["nanbeige", "hrm_text:attention=causal", "loopus"]
QUESTIONS = [
    [[5, 9, 1, 60, 33, 2, 17], [5, 9, 1, 60, 4], [5, 9, 1, 60, 33, 2]],
    [[3, 4, 5, 6, 7, 8, 9, 10, 11], [3, 4, 5, 6, 7, 8, 9, 10, 12]],
    [[20, 21, 22], [23, 24]],
    [[40, 41, 42, 43, 44]],
]
SEQUENCES = [sequence for question in QUESTIONS for sequence in question]
SOURCES = [row for row, question in enumerate(QUESTIONS) for _ in question]

sequences = st.lists(st.integers(0, 3), min_size=1, max_size=6)
questions = st.lists(st.lists(sequences, min_size=1, max_size=4), min_size=1, max_size=4)
SHARING = pytest.mark.parametrize("shares", [False, True], ids=["apart", "shared"])


def groups_of(drawn, shares):
    return [Group(question, common_prefix(question) if shares else 0, row) for row, question in enumerate(drawn)]


@given(st.lists(sequences, min_size=2, max_size=4))
def test_common_prefix_is_common_and_leaves_each_a_token(found):
    shared = common_prefix(found)
    assert all(sequence[:shared] == found[0][:shared] and len(sequence) > shared for sequence in found)
    longer = [sequence[: shared + 1] for sequence in found]
    assert any(one != longer[0] for one in longer) or min(map(len, found)) == shared + 1


def test_rows_of_their_own_unless_tokens_are_shared():
    packing = pack(groups_of(QUESTIONS, shares=False))
    assert packing.batch is packing.sequences
    assert packing.batch.input_ids.shape == (len(SEQUENCES), max(map(len, SEQUENCES)))
    assert packing.batch.source_rows == SOURCES
    assert pack(groups_of(QUESTIONS, shares=True)).batch.input_ids.shape[0] == 1


@SHARING
@given(questions)
@settings(deadline=None, max_examples=30)
def test_no_position_is_padding_and_every_sequence_is_found_again(shares, drawn):
    groups = groups_of(drawn, shares)
    packing = pack(groups, unpadded=True)
    batch, parts = packing.batch, packing.batch.parts
    assert list(batch.input_ids.shape) == [1, sum(group.tokens for group in groups)]
    assert batch.padding == "none"
    rows = packing.separate(torch.stack([batch.input_ids, batch.position_ids, parts.owner_1N], -1))
    flat = [(number, sequence) for number, group in enumerate(groups) for sequence in group.sequences]
    assert rows.shape[0] == len(flat)
    for row, (number, sequence) in zip(rows.tolist(), flat, strict=True):
        assert [entry[:2] for entry in row[: len(sequence)]] == [[token, at] for at, token in enumerate(sequence)]
        assert {batch.source_rows[entry[2]] for entry in row} == {groups[number].source_row}
    assert parts.queries[-1] == batch.input_ids.shape[1]
    assert parts.longest == parts.queries.diff().max()
    assert parts.longest_keys == parts.keys.diff().max()


@given(questions)
@settings(deadline=None, max_examples=30)
def test_a_position_sees_its_own_sequence_up_to_itself(drawn):
    parts = pack(groups_of(drawn, shares=True), unpadded=True).batch.parts
    packing = pack(groups_of(drawn, shares=True), unpadded=True)
    places = torch.arange(int(parts.keys[-1])) if parts.places is None else parts.places
    seen = {}
    for part in range(len(parts.queries) - 1):
        asked = range(int(parts.queries[part]), int(parts.queries[part + 1]))
        keys = places[int(parts.keys[part]) : int(parts.keys[part + 1])].tolist()
        for place, position in enumerate(asked):
            seen[position] = keys[: len(keys) - len(asked) + place + 1]
    flat = [sequence for question in drawn for sequence in question]
    for place_S, sequence in zip(packing.place_RS.tolist(), flat, strict=True):
        for at in range(len(sequence)):
            assert seen[place_S[at]] == place_S[: at + 1]


@SHARING
@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
def test_attention_is_that_of_each_sequence_alone(plain, heads, is_plain, shares):
    packing = pack(groups_of(QUESTIONS, shares), unpadded=True)
    count = packing.batch.input_ids.shape[1]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, count, h, 8, generator=generator, dtype=torch.float64) for h in (4, heads, heads))
    around = dataclasses.replace(attention_context(packing.batch, Rotary(8, 100.0), torch.float64), plain=is_plain)
    found = packing.separate(attend(q, k, v, around, 0))
    q, k, v = (packing.separate(x.flatten(2)).unflatten(2, (-1, 8)).numpy() for x in (q, k, v))
    for index, sequence in enumerate(SEQUENCES):
        valid = slice(0, len(sequence))
        expected = plain.attention(q[index, valid], k[index, valid], v[index, valid])
        assert np.abs(found[index, valid].numpy() - expected).max() < 1e-12


@SHARING
@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_logits_are_those_of_padded_rows(model_of, family, shares):
    model, packing = model_of(family), pack(groups_of(QUESTIONS, shares), unpadded=True)
    padded = Batch.from_rows(SEQUENCES, source_rows=SOURCES)
    assert packing.batch.input_ids.numel() <= int(padded.attention_mask.sum())
    packed, expected = model.states(packing.batch, range(4)), model.states(padded, range(4))
    for depth, state in expected.items():
        found = packing.separate(packed[depth])
        assert (found - state)[padded.attention_mask].abs().max() < 1e-11 * state.abs().max()
    logits = model.readout(packing.separate(packed[3]))
    assert (logits - model.readout(expected[3]))[padded.attention_mask].abs().max() < 1e-10


@SHARING
@pytest.mark.parametrize("rule", ["question", "paper", "official"])
def test_initial_states_are_those_of_padded_rows_to_the_bit(model_of, rule, shares):
    model, packing = model_of("huginn", torch.float32), pack(groups_of(QUESTIONS, shares), unpadded=True)
    model.initial_state = dataclasses.replace(model.initial_state, rule=rule)
    padded = Batch.from_rows(SEQUENCES, source_rows=SOURCES)
    if shares and rule != "question":
        with pytest.raises(LoopscopeError, match="one to a row"):
            model.embed(packing.batch)
        return
    found = packing.separate(model.embed(packing.batch).state)
    assert torch.equal(found[padded.attention_mask], model.embed(padded).state[padded.attention_mask])


def test_models_that_do_not_know_parts_refuse_them_and_get_padded_rows(model_of):
    class Careless(LoopedModule):
        vocabulary_size = 100

    with pytest.raises(LoopscopeError, match="leave parts out"):
        Careless().check_batch(pack(groups_of(QUESTIONS, shares=False), unpadded=True).batch)
    assert not runs_unpadded(model_of("ouro", torch.bfloat16)), "no kernel on a CPU"
    assert not takes_varlen(torch.zeros(2, 8, dtype=torch.bfloat16))


IDS = torch.tensor([[3, 4, 5], [6, 7, 0]])


@pytest.mark.parametrize(
    ("mask", "padding"),
    [
        ([[1, 1, 1], [1, 1, 1]], "none"),
        ([[1, 1, 1], [1, 1, 0]], "right"),
        ([[1, 1, 1], [0, 1, 1]], "left"),
        ([[1, 0, 0], [0, 1, 1]], "left"),
        ([[1, 1, 1], [1, 0, 1]], "left"),
        ([[0, 1, 0], [1, 1, 1]], "left"),
    ],
)
def test_padding_is_told_from_the_mask(mask, padding):
    assert Batch(IDS, torch.tensor(mask)).padding == padding


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_ids": torch.zeros(3, dtype=torch.int64)}, "input_ids must be int64"),
        ({"input_ids": torch.zeros(2, 3)}, "input_ids must be int64"),
        ({"input_ids": torch.zeros(0, 3, dtype=torch.int64)}, "input_ids must be int64"),
        ({"input_ids": IDS - 3}, "negative id"),
        ({"attention_mask": torch.ones(2, 2)}, "attention_mask has shape"),
        ({"position_ids": torch.zeros(1, 3)}, "position_ids has shape"),
        ({"source_rows": [1]}, "source_rows has shape"),
        ({"initial_state": torch.zeros(2, 2, 8)}, "initial_state has shape"),
    ],
)
def test_mismatched_fields_are_refused_in_one_line(fields, message):
    given = {"input_ids": IDS, "attention_mask": torch.ones(2, 3)} | fields
    with pytest.raises(LoopscopeError, match=message) as refused:
        Batch(**given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("padding", ["right", "left"])
def test_rows_of_different_lengths_are_padded_on_the_side_asked_for(padding):
    batch = Batch.from_rows([[1, 2, 3], [4]], pad_id=9, padding=padding, source_rows=[5, 6])
    assert batch.padding == padding
    assert batch.input_ids[batch.attention_mask].tolist() == [1, 2, 3, 4]
    assert batch.input_ids[~batch.attention_mask].tolist() == [9, 9]
    assert batch.source_rows == [5, 6]
