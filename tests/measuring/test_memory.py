"""Out of memory: a refused allocation halves the batch for good, and the numbers stay what they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.measuring.readouts import AffineReadout
from loopscope.store import StoredRun


def test_single_question_that_does_not_fit_is_named(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(AffineReadout, "paths", refuse)
    with pytest.raises(LoopscopeError, match="alone does not fit into memory"):
        measured("ouro", "arithmetic", limit=2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_refusal_halves_the_batch(checkpoint: Callable[[str], str], tmp_path: Path) -> None:
    from loopscope.api import measure_with as measure

    said: list[str] = []
    torch.cuda.empty_cache()  # what earlier tests left cached would not have to be allocated
    torch.cuda.set_per_process_memory_fraction(0.002)
    try:
        run = measure(
            checkpoint("huginn"),
            ["arithmetic"],
            output=tmp_path / "run",
            transitions=[1],
            limit=512,
            unit_size=512,
            batch_size="512",
            device="cuda",
            notify=said.append,
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert said
    assert run.finished
