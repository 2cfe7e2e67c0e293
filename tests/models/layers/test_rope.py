"""Rotary positions against complex numbers, the scaling against its formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.models.families import RotaryFields
from loopscope.models.layers.positions import Rotary, Scaling, rotate

HEAD = 16


def heads(dtype=torch.float32, rows=2, width=7):
    return torch.randn(rows, width, 3, HEAD, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotation_is_multiplication_by_a_unit_complex_number(plain, layout):
    rotary = Rotary(HEAD, 10000.0, layout)
    x = heads()
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [9, 4, 4, 0, 1, 30, 2]])
    found = rotate(x, rotary.tables(positions, x.dtype))
    pairs = plain.half_pairs(HEAD) if layout == "half" else plain.adjacent_pairs(HEAD)
    for row in range(2):
        expected = plain.rotate(x[row].numpy(), plain.frequencies(HEAD, 10000.0), pairs, positions[row].tolist())
        assert np.abs(found[row].numpy() - expected).max() < 5e-6


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rounded", [False, True])
def test_numbers_are_the_same_with_and_without_gradients(layout, dtype, rounded):
    x = heads(dtype)
    tables = Rotary(HEAD, 10000.0, layout, rounded).tables(torch.arange(7)[None], dtype)
    with torch.no_grad():
        without = rotate(x, tables)
    assert torch.equal(without, rotate(x, tables))
    assert without.dtype == dtype


def test_scores_depend_on_the_distance_alone():
    rotary = Rotary(HEAD, 10000.0)
    q, k = heads()[0, 0, 0], heads()[0, 1, 1]

    def score(a, b):
        turned = [
            rotate(x.reshape(1, 1, 1, HEAD), rotary.tables(torch.tensor([[p]]), x.dtype)) for x, p in ((q, a), (k, b))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(3, 1) == pytest.approx(score(103, 101), abs=1e-4)
    assert abs(score(3, 1) - score(3, 2)) > 1e-2


def test_tables_are_float32_in_a_bfloat16_model_unless_rounded():
    positions = torch.arange(600)[None]
    kept = Rotary(HEAD, 1e4).tables(positions, torch.bfloat16)
    rounded = Rotary(HEAD, 1e4, rounded=True).tables(positions, torch.bfloat16)
    assert kept.cos.dtype == torch.float32
    assert rounded.cos.dtype == torch.bfloat16
    # Angles are never low precision: position 511 is not representable in BF16.
    assert torch.equal(rounded.cos, kept.cos.to(torch.bfloat16))


def test_llama3_scaling_follows_its_formula():
    scaling = Scaling(32.0, 1.0, 4.0, 8192)
    found = Rotary(64, 500000.0, scaling=scaling).frequencies().tolist()
    for i, value in enumerate(found):
        plain = 500000.0 ** (-2 * i / 64)
        wavelength = 2 * math.pi / plain
        if wavelength < 8192 / 4:
            expected = plain
        elif wavelength > 8192 / 1:
            expected = plain / 32
        else:
            mix = (8192 / wavelength - 1) / (4 - 1)
            expected = (1 - mix) * plain / 32 + mix * plain
        assert value == pytest.approx(expected, rel=2e-6)


def test_linear_scaling_divides():
    plain, scaled = Rotary(8, 100.0), Rotary(8, 100.0, scaling=Scaling(4.0))
    assert torch.allclose(scaled.frequencies() * 4, plain.frequencies())


class Fields(RotaryFields):
    title = "test"
    hidden_size: int = 64
    num_attention_heads: int = 1


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    "json",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3},
        {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "type": "llama3"}},
    ],
)
def test_both_spellings_of_the_configuration_are_read(json):
    expected = Rotary(64, 5e5, "half", True, Scaling(32.0, 1.0, 4.0, 8192))
    assert Fields.read(json).half_split(rounded=True) == expected


@pytest.mark.parametrize(
    ("json", "message"),
    [
        ({}, "rope_theta is missing"),
        ({"rope_theta": -1}, "rope_theta must be greater"),
        (
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "factor": 2}},
            "rope_scaling.rope_type 'yarn' is not supported",
        ),
        ({"rope_theta": 1e4, "rope_scaling": {"rope_type": "llama3", "factor": 2}}, "low_freq_factor is missing"),
        ({"rope_theta": 1e4, "rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "must exceed low_freq_factor"),
        ({"rope_theta": 1e4, "rope_scaling": "llama3"}, "rope_scaling must be a valid dictionary"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported, only 1.0"),
    ],
)
def test_what_is_not_supported_is_named(json, message):
    with pytest.raises(LoopscopeError, match=message):
        Fields.read(json).half_split(rounded=False)
