"""Batches: what is accepted, and what is worked out about padding."""

from __future__ import annotations

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch

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
        ({"source_rows": [1]}, "source_rows names 1 rows"),
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
