"""Pieces of work side by side: their order, their errors, their threads."""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial

import pytest
import torch

from loopscope.readout import _workers
from loopscope.readout._workers import in_parallel, workers

_SETTING = ContextVar("setting", default="outside")


@pytest.fixture(params=[1, 2, 8])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_tasks(threads):
    assert in_parallel([partial(pow, k, 2) for k in range(9)]) == [k**2 for k in range(9)]


def test_an_error_comes_out(threads):
    with pytest.raises(ZeroDivisionError):
        in_parallel([partial(divmod, 1, k) for k in (2, 0, 1)])


def test_pieces_share_torchs_threads_and_leave_them_alone(threads):
    assert workers() == min(4, threads)
    assert in_parallel([torch.get_num_threads] * 3) == [max(1, threads // workers())] * 3
    assert torch.get_num_threads() == threads


def test_tasks_see_the_settings_of_whoever_asks(threads):
    token = _SETTING.set("inside")
    try:
        assert in_parallel([_SETTING.get] * 3) == ["inside"] * 3
    finally:
        _SETTING.reset(token)


def test_a_single_task_needs_no_other_thread(monkeypatch):
    monkeypatch.setattr(_workers, "_pool", None)
    assert in_parallel([lambda: 5]) == [5]
