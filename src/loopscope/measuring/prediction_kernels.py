"""The sums of `predictions` in two looks at the logits of two depths; `predictions.plain_sums` has the plain code.

A program reads one token's logits: first for what does not depend on the sums (Σ exp x, means of v), then for what does
(the variance around the mean, probabilities below a share of the largest set to 1/V). Entries are FP32, sums float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constant, constexpr, jit, launch, power_of_two, tl
from loopscope.store.schema import MIN_P

_BLOCK = 512
_MIN_P = constant(MIN_P)


def prediction_sums(
    z_nV: Tensor, top_n: Tensor, own_n: Tensor, before: tuple[Tensor, Tensor, Tensor] | None
) -> list[Tensor]:
    """Σe, Σe·x, entries above the own, Σw; with the depth before Σe₀v, Σe·v, Σe₀(v − mean)², Σw₀(log w₀ − log w).

    Args:
        z_nV: logits, FP32.
        top_n: the largest of each row.
        own_n: those of the reference tokens.
        before: logits, largest logits and Σe (float64) of the depth before.
    """
    rows, vocabulary = z_nV.shape
    z_nV = z_nV.contiguous()
    z0_nV, top0_n, total0_n = before or (z_nV, top_n, torch.ones(1, dtype=torch.float64, device=z_nV.device))
    out = torch.zeros(8, rows, dtype=torch.float64, device=z_nV.device)
    block = min(_BLOCK, power_of_two(vocabulary))
    given = (z_nV, z0_nV.contiguous(), top_n.contiguous(), top0_n.contiguous(), own_n.contiguous(), total0_n, out)
    launch(_sums, (rows,), z_nV, *given, rows, vocabulary, HAS_BEFORE=before is not None, BLOCK=block)
    return list(out.unbind(0))


@jit
def _sums(
    z: Value,
    z0: Value,
    top: Value,
    top0: Value,
    own: Value,
    total0: Value,
    out: Value,
    rows: Value,
    vocabulary: Value,
    HAS_BEFORE: constexpr,
    BLOCK: constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    largest = tl.load(top + row)
    reference = tl.load(own + row)
    totals = tl.zeros([BLOCK], dtype=tl.float64)
    energies = tl.zeros([BLOCK], dtype=tl.float64)
    above = tl.zeros([BLOCK], dtype=tl.float64)
    moved_before = tl.zeros([BLOCK], dtype=tl.float64)
    moved_now = tl.zeros([BLOCK], dtype=tl.float64)
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < vocabulary
        z_now = tl.load(z + row * vocabulary + columns, mask=inside, other=0.0)
        x = z_now - largest
        e = tl.where(inside, tl.exp(x), 0.0)
        totals += e.to(tl.float64)
        energies += (e * x).to(tl.float64)
        above += tl.where(inside & (z_now > reference), 1.0, 0.0).to(tl.float64)
        if HAS_BEFORE:
            z_before = tl.load(z0 + row * vocabulary + columns, mask=inside, other=0.0)
            e_before = tl.where(inside, tl.exp(z_before - tl.load(top0 + row)), 0.0)
            v = z_now - z_before
            moved_before += (e_before * v).to(tl.float64)
            moved_now += (e * v).to(tl.float64)
    total = tl.sum(totals, 0)
    tl.store(out + row, total)
    tl.store(out + rows + row, tl.sum(energies, 0))
    tl.store(out + 2 * rows + row, tl.sum(above, 0))
    tl.store(out + 4 * rows + row, tl.sum(moved_before, 0))
    tl.store(out + 5 * rows + row, tl.sum(moved_now, 0))
    floor = (total / vocabulary).to(tl.float32)
    log_floor = tl.log(floor)
    floored = tl.zeros([BLOCK], dtype=tl.float64)
    spreads = tl.zeros([BLOCK], dtype=tl.float64)
    gaps = tl.zeros([BLOCK], dtype=tl.float64)
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < vocabulary
        z_now = tl.load(z + row * vocabulary + columns, mask=inside, other=0.0)
        x = z_now - largest
        e = tl.exp(x)
        low = e < _MIN_P
        floored += tl.where(inside, tl.where(low, floor, e), 0.0).to(tl.float64)
        if HAS_BEFORE:
            sum_before = tl.load(total0 + row)
            floor_before = (sum_before / vocabulary).to(tl.float32)
            mean = (tl.sum(moved_before, 0) / sum_before).to(tl.float32)
            z_before = tl.load(z0 + row * vocabulary + columns, mask=inside, other=0.0)
            x_before = z_before - tl.load(top0 + row)
            e_before = tl.exp(x_before)
            low_before = e_before < _MIN_P
            centred = z_now - z_before - mean
            spreads += tl.where(inside, e_before * centred * centred, 0.0).to(tl.float64)
            weight = tl.where(low_before, floor_before, e_before)
            apart = tl.where(low_before, tl.log(floor_before), x_before) - tl.where(low, log_floor, x)
            gaps += tl.where(inside, weight * apart, 0.0).to(tl.float64)
    tl.store(out + 3 * rows + row, tl.sum(floored, 0))
    tl.store(out + 6 * rows + row, tl.sum(spreads, 0))
    tl.store(out + 7 * rows + row, tl.sum(gaps, 0))
