"""The clock takes turns and warms up."""

from __future__ import annotations

import time

import torch

from loopscope.bench.clock import Clock


def test_calls_take_turns_after_their_warm_up():
    order: list[str] = []
    found = Clock(torch.device("cpu")).race({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert "".join(order) == "ab" * 4
    assert [found[name].repeats for name in "ab"] == [3, 3]


def test_a_call_takes_as_long_as_it_takes():
    found = Clock(torch.device("cpu")).race({"nap": lambda: time.sleep(0.02)}, 2, warm_ups=0)["nap"]
    assert 0.02 <= found.low <= found.value <= found.high < 2.0
