"""Running out of memory, recognised, and answered by halving the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from loopscope._errors import LoopscopeError
from loopscope.measure.batches import Question, halves

Measured = TypeVar("Measured")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host refused an allocation."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "not enough memory" in text)


def halving(
    measure: Callable[[Sequence[Question]], Measured], questions: Sequence[Question], notice: Callable[[str], None]
) -> list[Measured]:
    """Measure a batch, in halves of halves if it does not fit.

    Raises:
        LoopscopeError: a single question does not fit.
    """
    try:
        return [measure(questions)]
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        lone = questions[0].example.id if len(questions) == 1 else None
    # Outside the handler: the traceback no longer keeps the tensors of the failed attempt alive.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if lone is not None:
        raise LoopscopeError(
            f"question {lone} alone does not fit into memory: use a larger device, --dtype bfloat16,"
            " a lower --level, or leave it out with --long skip"
        )
    notice(f"out of memory with {len(questions)} questions in a batch; going on with halves")
    first, second = halves(questions)
    return halving(measure, first, notice) + halving(measure, second, notice)
