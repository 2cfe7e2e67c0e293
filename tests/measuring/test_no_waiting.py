"""Launching a batch asks much of the device and waits for nothing: no number comes back before the batch is through."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from loopscope import load_model, load_tokenizer
from loopscope.measuring import readouts
from loopscope.measuring.batch_pass import BatchPass
from loopscope.measuring.batching import Question, encode_task
from loopscope.measuring.config import MeasureConfig
from loopscope.readout.affine.path import AffinePath
from loopscope.tasks.load import load_task

WAITING = {
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::bincount",
    "aten::repeat_interleave",
}
"""Operations whose result has a size or a use on the host that only the device knows."""


class NoWaiting(TorchDispatchMode):
    """Refuses what would wait for a GPU, on any device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        assert name not in WAITING, f"{name} waits for the device"
        if name == "aten::segment_reduce":
            assert kwargs.get("unsafe"), "segment_reduce checks its lengths"
        if name in ("aten::index", "aten::index_put_", "aten::index_put"):
            chosen = [index.dtype for index in args[1] if index is not None]
            assert torch.bool not in chosen, f"{name} counts a mask"
        return func(*args, **kwargs)


@contextmanager
def survey_left_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The readout package answers for its own sweeps, which on a GPU are kernels."""
    with monkeypatch.context() as patch:
        for owner, name in ((readouts, "surveys"), (AffinePath, "survey"), (AffinePath, "at_own")):
            real = getattr(owner, name)

            def quiet(*arguments: Any, _real: Any = real, **options: Any) -> Any:
                with _disable_current_modes():
                    return _real(*arguments, **options)

            patch.setattr(owner, name, quiet)
        yield


def settings_of(level: str, *, tokens: bool) -> MeasureConfig:
    more: dict[str, Any] = {"tokens": tokens, "trace": tokens, "lens": 3 * tokens}
    return MeasureConfig(model="toy-ouro", tasks=(), transitions=[1, 2], depths=[0, 5, 6], level=level, **more)


def questions_of(folder: str, task: str, count: int, *, spans: bool) -> list[Question]:
    loaded = load_task(task, limit=count)
    return list(encode_task(loaded, load_tokenizer(folder), None, "error", spans=spans).questions)


@pytest.mark.parametrize(("level", "tokens"), [("quick", False), ("grid", True)])
@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_launching_waits_for_nothing(
    task: str, level: str, tokens: bool, checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(checkpoint("ouro"))
    settings = settings_of(level, tokens=tokens)
    questions = questions_of(checkpoint("ouro"), task, 4, spans=tokens)
    usual = BatchPass(model, settings, questions).launch().finish()
    trip = BatchPass(model, settings, questions)
    with survey_left_out(monkeypatch), NoWaiting():
        pending = trip.launch()
    np.testing.assert_array_equal(pending.finish()["depths"]["utility"], usual["depths"]["utility"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("level", "tokens"), [("quick", False), ("grid", True)])
@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_launching_on_a_gpu_waits_for_nothing(
    task: str, level: str, tokens: bool, checkpoint: Callable[[str], str]
) -> None:
    model = load_model(checkpoint("ouro"), device="cuda", dtype="bfloat16")
    settings = settings_of(level, tokens=tokens)
    questions = questions_of(checkpoint("ouro"), task, 16, spans=tokens)
    first = BatchPass(model, settings, questions).launch().finish()
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is a prototype and may overlook some
            torch.cuda.set_sync_debug_mode("error")
        pending = BatchPass(model, settings, questions).launch()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    second = pending.finish()
    for table, columns in first.items():
        for name, values in columns.items():
            if isinstance(values, np.ndarray):
                np.testing.assert_array_equal(second[table][name], values, err_msg=f"{table}.{name}")
