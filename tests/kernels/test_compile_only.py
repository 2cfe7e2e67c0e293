"""Compiling ahead: a launch within the block runs nothing; a later one of the same kernel waits for its compiler."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from loopscope.kernels import language
from loopscope.kernels.language import compile_only, is_compiling, launch, wait_for_compilers

ON_GPU = SimpleNamespace(is_cuda=True, device=SimpleNamespace(index=0))


class Compiled:
    """What Triton makes of a variant: asking for what runs it builds that."""

    def __init__(self, events: list[object]) -> None:
        self._events = events

    @property
    def run(self):
        self._events.append("built")


class Kernel:
    """What Triton makes of a kernel, as `launch` uses it."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.events: list[object] = []
        self.may_end, self.breaks = threading.Event(), breaks

    def warmup(self, *arguments, grid, **options):
        self.may_end.wait()
        if self.breaks:
            raise ValueError("no compiler")
        self.events.append(("compiled", arguments, grid, options["num_warps"]))
        return Compiled(self.events)

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.events.append(("run", arguments, grid, options["num_warps"]))


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    monkeypatch.setattr(language, "triton", object())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())


def test_a_launch_waits_for_its_own_kernels_compiler():
    kernel, other = Kernel(), Kernel()
    with compile_only():
        launch(kernel, (2,), ON_GPU, 1, warps=8)
        launch(kernel, (3,), ON_GPU, 2)
    launch(other, (1,), ON_GPU)
    assert (kernel.events, other.events) == ([], [("run", (), (1,), 4)])
    threading.Timer(0.01, kernel.may_end.set).start()
    launch(kernel, (2,), ON_GPU, 1, warps=8)
    launch(kernel, (3,), ON_GPU, 2)
    compiled, run = ([event for event in kernel.events if event[0] == kind] for kind in ("compiled", "run"))
    assert sorted(compiled, key=repr) == [("compiled", (1,), (2,), 8), ("compiled", (2,), (3,), 4)]
    assert run == [("run", (1,), (2,), 8), ("run", (2,), (3,), 4)]
    assert kernel.events.index(compiled[0]) < kernel.events.index("built") < kernel.events.index(run[-1])
    assert kernel.events.count("built") == 2
    assert kernel not in language._pending


def test_whether_anything_is_still_being_compiled():
    kernel = Kernel()
    with compile_only():
        launch(kernel, (1,), ON_GPU)
    assert is_compiling()
    threading.Timer(0.01, kernel.may_end.set).start()
    wait_for_compilers()
    assert not is_compiling()
    assert kernel.events == [("compiled", (), (1,), 4), "built"]
    launch(kernel, (1,), ON_GPU)
    assert kernel not in language._pending


def test_a_launch_does_not_wait_for_another_variant():
    kernel = Kernel()
    with compile_only():
        launch(kernel, (1,), ON_GPU, warps=8)
    launch(kernel, (1,), ON_GPU, warps=4)
    assert kernel.events == [("run", (), (1,), 4)]
    kernel.may_end.set()
    launch(kernel, (1,), ON_GPU, warps=8)
    assert kernel.events[1:] == [("compiled", (), (1,), 8), "built", ("run", (), (1,), 8)]


def test_a_compiler_that_fails_is_not_the_end():
    kernel = Kernel(breaks=True)
    kernel.may_end.set()
    with compile_only():
        launch(kernel, (1,), ON_GPU)
    launch(kernel, (1,), ON_GPU)
    assert kernel.events == [("run", (), (1,), 4)]


def test_whether_kernels_work_is_tried_even_so(monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr(language, "_probe", kernel)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: ON_GPU)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: kernel.events.append("waited"))
    with compile_only():
        language.probe(torch.device("cuda"))
        launch(kernel, (2,), ON_GPU)
    assert kernel.events == [("run", (ON_GPU,), (1,), 4), "waited"]
    kernel.may_end.set()


def test_elsewhere_nothing_is_compiled_ahead():
    kernel = Kernel()
    with compile_only():
        launch(kernel, (1,), torch.zeros(1))
    assert kernel.events == [("run", (), (1,), 4)]
