"""Logits a block of tokens at a time: a readout whose last map is an affine head never makes them all at once.

Shapes: T reference tokens, t a block of them, V vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from loopscope._errors import LoopscopeError
from loopscope.readout.sources import blocks

_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}  # of logits at once, all Taylor coefficients counted


@runtime_checkable
class HeadedReadout(Protocol):
    """A readout as two maps, `head(body(state, positions))`, with an affine head (a model's `body_and_head`).

    Attributes:
        body: from a state and positions to what the head reads, [T, D].
        head: from some rows of that to their logits, [t, D] → [t, V].
        vocabulary: V.
    """

    body: Callable[..., Any]
    head: Callable[..., Any]
    vocabulary: int


def as_headed(readout: Any) -> HeadedReadout | None:
    """The readout where it comes as body and head."""
    return readout if isinstance(readout, HeadedReadout) else None


class TokenBlock(NamedTuple):
    """Logits [t, V] of the tokens `rows`, a tensor or a series."""

    rows: slice
    logits: Any


def logit_blocks(readout: Callable[..., Any], state: Any, positions: Any, streams: int) -> Iterator[TokenBlock]:
    """The logits of every token; `streams` is how many coefficients a series has, 1 for a tensor."""
    headed = as_headed(readout)
    if headed is None or positions is None:
        logits = readout(state) if positions is None else readout(state, positions)
        if len(logits.shape) != 2:
            raise LoopscopeError(
                f"the readout gave logits of shape {tuple(logits.shape)}; it must give [reference tokens, vocabulary]."
            )
        if logits.shape[0] == 0:
            raise LoopscopeError("the reference set is empty; give at least one reference token.")
        yield TokenBlock(slice(0, int(logits.shape[0])), logits)
        return
    hidden = headed.body(state, positions)
    elements = _ELEMENTS.get(torch.device(hidden.device).type, _ELEMENTS["cpu"])
    size = max(16, elements // (streams * headed.vocabulary))
    for rows in blocks(int(hidden.shape[0]), size):
        yield TokenBlock(rows, headed.head(hidden[rows]))
