"""How far numbers move with the batch layout, against two runs that were measured in two layouts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from loopscope.errors import LoopscopeError
from loopscope.measuring.movement import Movement, layout_movement
from loopscope.store import StoredRun

OPTIONS = {"limit": 6, "dtype": "bfloat16", "transitions": [1, 3], "level": "quick"}


def by_layout(run: StoredRun, table: str) -> dict[str, Movement]:
    return {found.layout: found for found in layout_movement(run) if found.table == table}


def test_movement_is_the_difference_of_two_runs(measured: Callable[..., StoredRun]) -> None:
    """Options that share a row are what the layout moves on a CPU in BF16."""
    run = measured("ouro", "arithmetic-mc", tokens=True, **OPTIONS)
    other = measured("ouro", "arithmetic-mc", tokens=True, share_context=True, **OPTIONS)
    found = by_layout(run, "questions")
    assert list(found) == [
        "one question at a time",
        "two questions, source order",
        "units of 8 questions",
        "the first half of the questions",
        "shared context",
    ]
    shared = found.pop("shared context")
    for symbol, column in (("U", "utility_before"), ("ΔU", "gain"), ("A", "slope"), ("Q", "quadratic")):
        expected = np.abs(other.records[column].to_numpy() - run.records[column].to_numpy())
        np.testing.assert_allclose(shared.moved[symbol], expected, rtol=1e-6, atol=1e-12)
        assert expected.max() > 1e-5
        assert all(movement.moved[symbol].max() < 1e-9 for movement in found.values())
    assert shared.flipped == (run.records["outcome"] != other.records["outcome"]).sum()
    assert [movement.updates for movement in found.values()] == [12, 12, 12, 6]
    tokens = by_layout(run, "tokens")["shared context"]
    one, two = (r.tokens.sort("row", "transition", "option", "token").collect()["gain"] for r in (run, other))
    np.testing.assert_allclose(tokens.moved["ΔU"], np.abs(one.to_numpy() - two.to_numpy()), rtol=1e-6, atol=1e-12)


def test_grid_runs_compare_their_best_scale_and_a_run_without_updates_is_refused(
    measured: Callable[..., StoredRun],
) -> None:
    run = measured("ouro", "arithmetic", limit=3, level="grid")
    assert all(movement.moved["α*"].max() == 0.0 for movement in by_layout(run, "questions").values())
    with pytest.raises(LoopscopeError, match="has no updates to compare: measure it with transitions"):
        list(layout_movement(measured("ouro", "arithmetic", limit=2, transitions=[], level="quick")))
