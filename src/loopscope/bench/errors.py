"""Errors of a quantity against FP64, ours beside the plain FP32 implementation's, and what chance has to do with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.bench.measured import over

_RESAMPLES = 400
_LEVEL = 0.95


@dataclass(frozen=True)
class Error:
    """Errors of one quantity; `size` is the quantity's own RMS.

    `low` and `high` hold the ratio of the RMS errors in 95% of resampled tokens (bootstrap): where 1 lies between them,
    these tokens do not tell which implementation is the more accurate.
    """

    quantity: str
    size: float
    ours_rms: float
    plain_rms: float
    ours_max: float
    plain_max: float
    low: float
    high: float

    @property
    def rms_ratio(self) -> float:
        """Ours over plain: above 1 the plain implementation is the more accurate."""
        return over(self.ours_rms, self.plain_rms)

    @property
    def max_ratio(self) -> float:
        """The same of the largest errors, each a single token's and subject to chance."""
        return over(self.ours_max, self.plain_max)


def error_of(quantity: str, exact: Tensor, ours: Tensor, plain: Tensor) -> Error:
    """Of all values of one quantity, [tokens] or [tokens, scales], against those in FP64."""
    off, plain_off = ours.double() - exact, plain.double() - exact
    squares, plain_squares = (part.square().reshape(part.shape[0], -1).mean(1).cpu() for part in (off, plain_off))
    low, high = _interval(squares, plain_squares)
    rms, plain_rms = float(squares.mean().sqrt()), float(plain_squares.mean().sqrt())
    size = float(exact.double().square().mean().sqrt())
    return Error(quantity, size, rms, plain_rms, float(off.abs().max()), float(plain_off.abs().max()), low, high)


def _interval(squares_T: Tensor, plain_squares_T: Tensor) -> tuple[float, float]:
    tokens = squares_T.shape[0]
    drawn = torch.randint(tokens, (_RESAMPLES, tokens), generator=torch.Generator().manual_seed(20260904))
    ratios = [
        over(float(a), float(b)) ** 0.5
        for a, b in zip(squares_T[drawn].mean(1), plain_squares_T[drawn].mean(1), strict=True)
    ]
    ordered = sorted(ratios)
    outside = round((1.0 - _LEVEL) / 2.0 * _RESAMPLES)
    return ordered[outside], ordered[-1 - outside]
