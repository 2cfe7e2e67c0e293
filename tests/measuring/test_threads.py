"""Beside the device: one call ahead, one call behind, in order, and nothing handed over is lost."""

from __future__ import annotations

import threading

import pytest

from loopscope.measuring.run import OneBehind
from loopscope.measuring.worker import one_ahead


def test_the_next_call_is_made_while_a_result_is_in_use() -> None:
    begun = [threading.Event() for _ in range(4)]

    def call(index: int) -> int:
        begun[index].set()
        return index

    results = one_ahead([lambda index=index: call(index) for index in range(4)])
    assert next(results) == 0
    assert begun[1].wait(10)
    assert not begun[2].is_set()
    assert list(results) == [1, 2, 3]


def test_what_a_call_ahead_raises_is_raised_in_its_place() -> None:
    results = one_ahead([lambda: 1, lambda: 1 // 0, lambda: 3])
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_calls_ahead_that_nobody_wants_end_with_the_block() -> None:
    results = one_ahead([lambda: 1, lambda: 2, lambda: 3])
    next(results)
    results.close()
    assert not any(thread.name.startswith("loopscope-ahead") for thread in threading.enumerate())


def test_calls_behind_keep_their_order_and_one_is_on_its_way_at_most() -> None:
    done: list[int] = []
    gate = threading.Event()

    def call(index: int) -> None:
        if index == 0:
            gate.wait(10)
        done.append(index)

    with OneBehind() as behind:
        behind.do(call, 0)
        assert done == []
        gate.set()
        behind.do(call, 1)
        assert done[0] == 0
        behind.do(call, 2)
    assert done == [0, 1, 2]


def test_what_a_call_behind_raises_comes_with_the_next() -> None:
    with OneBehind() as behind:
        behind.do(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            behind.do(lambda: None)


def test_what_the_last_call_raises_comes_at_the_end() -> None:
    behind = OneBehind()
    behind.do(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError), behind:
        pass


def test_what_was_handed_over_is_completed_when_something_else_fails() -> None:
    gate, done = threading.Event(), []

    def call() -> None:
        gate.wait(10)
        done.append(True)

    def interrupted() -> None:
        with OneBehind() as behind:
            behind.do(call)
            gate.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == [True]
