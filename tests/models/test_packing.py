"""Packed rows: what goes where, and that every model's states are those of the separate sequences."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.models.base import LoopedModule
from loopscope.models.batch import Batch, Group, common_prefix, pack
from loopscope.models.layers.attention import attend
from loopscope.models.layers.positions import Rotary, attention_context

FAMILIES = ["ouro", "huginn", "retrofit_llama", "retrofit_olmo", "loop"]
FAMILIES += ["nanbeige", "hrm_text:attention=causal", "loopus"]
QUESTIONS = [
    [[5, 9, 1, 60, 33, 2, 17], [5, 9, 1, 60, 4], [5, 9, 1, 60, 33, 2]],
    [[7, 8, 30, 4], [7, 1]],
    [[3, 4, 5, 6, 7, 8, 9, 10, 11], [3, 4, 5, 6, 7, 8, 9, 10, 12]],
    [[20, 21, 22], [23, 24]],
    [[40, 41, 42, 43, 44]],
]
GROUPS = [Group(question, common_prefix(question), row) for row, question in enumerate(QUESTIONS)]
SEQUENCES = [sequence for question in QUESTIONS for sequence in question]
SOURCES = [row for row, question in enumerate(QUESTIONS) for _ in question]

sequences = st.lists(st.integers(0, 3), min_size=1, max_size=6)
questions = st.lists(st.lists(sequences, min_size=1, max_size=4), min_size=1, max_size=4)


@given(st.lists(sequences, min_size=2, max_size=4))
def test_common_prefix_is_common_and_leaves_each_a_token(found):
    shared = common_prefix(found)
    assert all(sequence[:shared] == found[0][:shared] and len(sequence) > shared for sequence in found)
    longer = [sequence[: shared + 1] for sequence in found]
    assert any(one != longer[0] for one in longer) or min(map(len, found)) == shared + 1


@given(questions)
@settings(deadline=None)
def test_every_sequence_is_found_again_at_its_own_positions(drawn):
    packing = pack([Group(question, common_prefix(question)) for question in drawn])
    batch = packing.batch
    positions = torch.arange(batch.input_ids.shape[1]) if batch.position_ids is None else batch.position_ids
    both = torch.stack([batch.input_ids, positions.expand_as(batch.input_ids)], -1)
    rows = packing.separate(both)
    flat = [sequence for question in drawn for sequence in question]
    assert rows.shape[0] == len(flat)
    for row, sequence in zip(rows, flat, strict=True):
        assert row[: len(sequence)].tolist() == [[token, place] for place, token in enumerate(sequence)]


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("shared", [4, 2])
def test_attention_sees_the_context_and_its_own_option(plain, shared, is_plain):
    packing = pack(GROUPS)
    rows, width = packing.batch.input_ids.shape
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, width, h, 8, generator=generator, dtype=torch.float64) for h in (4, shared, shared))
    for tensor in (q, k, v):
        tensor[~packing.batch.attention_mask] = 1e6
    around = dataclasses.replace(attention_context(packing.batch, Rotary(8, 100.0), torch.float64), plain=is_plain)
    found = packing.separate(attend(q, k, v, around, 0))
    q, k, v = (packing.separate(x.flatten(2)).unflatten(2, (-1, 8)).numpy() for x in (q, k, v))
    for index, sequence in enumerate(SEQUENCES):
        valid = slice(0, len(sequence))
        expected = plain.attention(q[index, valid], k[index, valid], v[index, valid])
        assert np.abs(found[index, valid].numpy() - expected).max() < 1e-12


@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_logits_are_those_of_the_separate_sequences(model_of, family):
    model, packing = model_of(family), pack(GROUPS)
    plain = Batch.from_rows(SEQUENCES, source_rows=SOURCES)
    assert packing.batch.input_ids.numel() < plain.input_ids.numel()
    packed, separate = model.states(packing.batch, range(5)), model.states(plain, range(5))
    for depth, expected in separate.items():
        found = packing.separate(packed[depth])
        assert found.shape == expected.shape
        assert (found - expected)[plain.attention_mask].abs().max() < 1e-11 * expected.abs().max()
    logits = model.readout(packing.separate(packed[4]))
    assert (logits - model.readout(separate[4]))[plain.attention_mask].abs().max() < 1e-10


def test_initial_states_are_drawn_by_position_to_the_bit(model_of):
    model, packing = model_of("huginn", torch.float32), pack(GROUPS)
    plain = Batch.from_rows(SEQUENCES, source_rows=SOURCES)
    found = packing.separate(model.embed(packing.batch).state)
    assert torch.equal(found[plain.attention_mask], model.embed(plain).state[plain.attention_mask])


def test_models_that_do_not_know_segments_refuse_them():
    class Careless(LoopedModule):
        vocabulary_size = 100

    with pytest.raises(LoopscopeError, match="leave segments and parts out"):
        Careless().check_batch(pack(GROUPS).batch)
