"""Options that share a row: every stored number is that of options in rows of their own, with less to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loopscope.api import measure_with as measure
from loopscope.measuring.arguments import BatchPolicy
from loopscope.measuring.batching import Question, collate, padded_tokens, plan_batches
from loopscope.models.packing import common_prefix
from loopscope.tasks.encoding import Example, Row, Sequence


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
def test_every_column_of_an_embedded_model(
    assert_same: Callable[..., None], dtype: str, tolerance: float, options: str, tmp_path: Path
) -> None:
    plain, shared = (
        measure(
            "toy-ouro",
            [options, "arithmetic-mc"],
            output=tmp_path / f"run-{sharing}",
            transitions=[4],
            depths=range(6),
            tokens=True,
            dtype=dtype,
            readout_dtype="float64",
            limit={"arithmetic-mc": 2},
            scalar_checks=2,
            device="cpu",
            share_context=sharing,
        )
        for sharing in (False, True)
    )
    assert_same(shared, plain, tolerance)


def question(row: int, *sequences: tuple[int, ...]) -> Question:
    scored = tuple(Sequence(ids, (len(ids) - 2,), (ids[-1],)) for ids in sequences)
    example = Example(f"q{row}", row, "", scored, 0)
    return Question(row, example, Row(f"q{row}", row, "", ("x",) * len(sequences)), None, common_prefix(sequences))


WIDE, NARROW = question(0, (1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (1, 2, 3, 4, 7, 8)), question(1, (1, 2, 3), (1, 4))
APART = question(2, (1, 2, 3), (2, 3))


def test_batches_are_planned_by_what_runs() -> None:
    assert [(q.group.width, q.group.rows) for q in (WIDE, NARROW, APART)] == [(8, 1), (4, 1), (3, 2)]
    assert padded_tokens([WIDE, NARROW, APART]) == 8 * 4 == collate([WIDE, NARROW, APART]).batch.input_ids.numel()
    batches = plan_batches([NARROW, APART, WIDE], BatchPolicy("tokens", budget=12))
    assert [[q.row for q in batch] for batch in batches] == [[0], [1, 2]]
