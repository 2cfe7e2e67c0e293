"""Columns that describe a question and not what a model made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from loopscope.measure.batches import Question
from loopscope.measure.columns import Columns
from loopscope.measure.layout import Layout


def identity_columns(layout: Layout) -> Columns:
    """Which question each row of `questions` or `depths` is about."""
    return {
        "row": np.asarray([q.row for q in layout.questions]),
        "example_id": [q.example.id for q in layout.questions],
        "source_row": np.asarray([q.example.source_row for q in layout.questions]),
    }


def length_columns(layout: Layout) -> Columns:
    """Sizes of the questions, and the width of the batch that they ran in."""
    columns: Columns = {
        "n_tokens": [q.example.prediction_count for q in layout.questions],
        "n_positions": [q.positions for q in layout.questions],
        "batch_width": [layout.width] * len(layout.questions),
        "difficulty": [_difficulty(q) for q in layout.questions],
    }
    if layout.is_options:
        columns["n_options"] = [q.sequences for q in layout.questions]
        columns["correct_option"] = [q.example.answer for q in layout.questions]
    return columns


def example_columns(questions: Sequence[Question]) -> Columns:
    """The table of texts: what was asked, so that a run can be read without its data set."""
    rows = []
    for question in questions:
        example, text = question.example, question.text
        is_options = example.answer is not None
        metadata = {key: value for key, value in example.metadata.items() if key != "difficulty"}
        rows.append(
            {
                "row": question.row,
                "example_id": example.id,
                "source_row": example.source_row,
                "prompt": text.context,
                "reference": None if is_options else text.continuations[0],
                "options": list(text.continuations) if is_options else None,
                "correct_option": example.answer,
                "n_tokens": example.prediction_count,
                "n_positions": question.positions,
                "option_tokens": [len(s.positions) for s in example.sequences] if is_options else None,
                "difficulty": _difficulty(question),
                "metadata": json.dumps(metadata, sort_keys=True) if metadata else None,
            }
        )
    return {name: [row[name] for row in rows] for name in rows[0]}


def _difficulty(question: Question) -> str | None:
    found = question.example.metadata.get("difficulty")
    return None if found is None else str(found)
