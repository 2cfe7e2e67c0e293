"""What the page holds of every question from the start: identifiers, first words, and one number each for the plot.

Shapes: N questions, T transitions; numbers are transition-major, [T, N].
"""

from typing import Any

import numpy as np

from loopscope.path import grid_optimum
from loopscope.report.evaluation_set import EvaluationSet
from loopscope.report.pack import pack
from loopscope.studies.records import GRID_SCALES

SNIPPET = 110
"""Characters of a question that tables and tooltips show."""
NUMBERS = {
    "slope": "slope",
    "gain": "gain",
    "quadratic": "quadratic",
    "scale": "quadratic_scale",
    "before": "utility_before",
}


def index(data: EvaluationSet) -> str:
    """The packed index of one evaluation set."""
    arrays: dict[str, Any] = {name: data.stacked(column) for name, column in NUMBERS.items()}
    arrays["outcome"] = np.stack([updates.outcome for updates in data.updates]).astype(np.uint8)
    grid = data.grid()
    if grid is not None:
        arrays["optimum"] = np.asarray(grid_optimum(GRID_SCALES, grid).alpha, dtype=np.float32)
    examples = data.examples
    values = {
        "ids": examples["example_id"].to_list(),
        "snippets": [snippet(prompt) for prompt in examples["prompt"].to_list()],
        "difficulty": None if examples["difficulty"].null_count() else examples["difficulty"].to_list(),
    }
    return pack(arrays, values)


def snippet(text: str) -> str:
    r"""The first words of a text on one line.

    >>> snippet("What is\n  one and one?")
    'What is one and one?'
    """
    # A megabyte of text need not be split to find its first words.
    words = " ".join(text[: 8 * SNIPPET].split())
    return words if len(words) <= SNIPPET else words[: SNIPPET - 1] + "…"
