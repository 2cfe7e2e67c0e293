"""Bare forward passes at the test's size: what is counted, and that padded rows give the same states."""

from __future__ import annotations

import torch

from loopscope.bench.forward_pass import PADDED, PRODUCTS, drawn_questions, padding_rows, rows


def test_forward_passes_are_held_against_their_products_and_padded_rows(setting):
    with torch.no_grad():
        huginn, ouro = rows(setting)
    for row in (huginn, ouro):
        assert {reference.name for reference in row.references} == {PRODUCTS, PADDED}
        # On a CPU rows are padded; on a GPU nothing but the tokens runs.
        assert row.size["tokens"] <= row.size["run_tokens"] == row.size["padded_tokens"]
        assert row.figures["relative_difference_to_padded"] == 0.0
        assert row.goals[0].met is None
    # Two matrices of attention, two of the feed-forward: 4 D² + 3 D F for each of 2 layers, 5 loops.
    per_token = 5 * 2 * 2 * (4 * 128 * 128 + 3 * 128 * 256)
    floor = next(reference for reference in ouro.references if reference.name == PRODUCTS)
    seconds = 2 * 64**3 / (ouro.figures["tflops_of_large_products"] * 1e12)
    expected = ouro.size["run_tokens"] * per_token / (2 * 64**3) * seconds
    assert abs(floor.measured.value / expected - 1) < 1e-9


def test_questions_are_as_long_as_a_benchmarks():
    lengths = sorted(question.width for question in drawn_questions(1000))
    assert 180 < sum(lengths) / 1000 < 210
    assert 90 < lengths[50] < 120
    assert 300 < lengths[950] < 350


def test_a_pass_runs_its_tokens_and_no_others(setting):
    for row in padding_rows(setting):
        assert row.measured.value == 1.0
        assert row.references[0].measured.value > 1.1
