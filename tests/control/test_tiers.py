"""`ls.control(…, tier=…)`: the fitted policies again, acting on the model."""

from __future__ import annotations

import pytest

import loopscope as ls
from loopscope.errors import LoopscopeError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return ls.measure(
        "toy-ouro", tasks=["arithmetic"], transitions=[4], depths=[1, 5], dtype="float32", limit=2, trace=True,
        output=tmp_path_factory.mktemp("run") / "run",
    )  # fmt: skip


def test_fixed_depths_act_as_the_trace_says(run):
    found = ls.control(run, tier="rerun")
    rows = {row.key: row for row in found.table.rows}
    for depth in range(1, 6):
        row = rows[f"fixed {depth}"]
        assert row.loops == depth
        assert abs(row.over_trace.value) < 1e-6
    assert rows["2 substeps"].cost > 10
    assert rows["2 substeps"].over_trace.value is None
    with pytest.raises(LoopscopeError, match="the figure is drawn for tier='offline'"):
        found.figure()


def test_what_cannot_be_is_one_line(run):
    for wrong, message in (
        ({"tier": "rerun", "floor": 2}, "floor=2 is for tier='offline'"),
        ({"tier": "online"}, "tier"),
    ):
        with pytest.raises(LoopscopeError, match=message):
            ls.control(run, **wrong)
