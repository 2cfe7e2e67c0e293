"""By how much tensor cores' sums are too small, measured once for each head.

**Loss.** A product over the hidden width is accumulated 16 entries at a time. An accumulator that is cut off after
each step loses half a unit in its last place on average, towards zero: units are proportional to the running sum, and
the running sum grows towards z, so the loss is on average proportional to z. Left alone it acts like a temperature a
little above 1, the same for every token, which averages over the vocabulary do not average away: at width 2048 some
millionths of every logit, several times the rounding of an FP32 product. What remains after z is multiplied by
1 + β has no preferred sign and is of the size of FP32 rounding.

**Halfway.** What was added early in the width has been cut off more often than what was added late, and no factor on a
finished logit knows which is which. Sums therefore grow by 1 + β halfway through the width, and once more, by about
half of that, when they are finished.

**Weights** grow by β of logits that lie far above the others, where those are that have probability.

**Central moments** need more care: a flat distribution averages over the whole vocabulary and leaves no noise in which
a wrong β could hide. Two things change what its displacements v = D·w lose, D the difference of the states:

- *Where D lies in the width.* Each step cuts off in proportion to all that was added before, so an entry of the width
  loses in proportion to the steps that follow it. With e_i the variance of the head's column i, v loses β in
  proportion to Σ e_i D_i² (1 − i/width) / Σ e_i D_i²; its share of the first half has grown halfway.
- *Where the distribution lies.* Small sums of BF16 products often fit their bits and lose nothing, so larger logits
  lose more of themselves. A softmax of logits with deviation σ = (Σ e_i h_i²)^½ leans to those that lie σ deviations
  higher. β(σ) is what distances from the mean lose under weights exp(σ z / deviation), measured at σ = 0 and 1;
  elsewhere β(σ) − β(0) follows 5σ² / (4 + σ²), as it does on an H200 and in an emulation bit by bit.

A device that rounds gets β = 0 but for noise. States and rows of the measurement are the same every time, so β depends
on the device and the head alone.

Shapes: T tokens or states, V rows of the head, D hidden width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from loopscope.kernels.language import Value, constexpr, descriptor, jit, launch, tl

_ROWS = 512
_TINY = torch.finfo(torch.float32).tiny
_ALIGNED = 5.0
"""How many deviations the logits lie above 0 on which β is measured: where those lie that have probability."""


class Growth(NamedTuple):
    """What undoes the loss of products with one head, on its device, float32."""

    logits: Tensor  # by how much finished logits grow, and sums that have come halfway; [2]
    halfway: int  # so far through the width
    spread: Tensor  # β(0) and β(1) − β(0) of moments, over a random state's share of steps to come; [2]
    energy_D: Tensor  # variance of each column


_known = WeakIdKeyDictionary()


def growth_of(weight_VD: Tensor) -> Growth:
    """What products with this head need."""
    version = 0 if weight_VD.is_inference() else weight_VD._version
    held: tuple[int, Growth] | None = _known.get(weight_VD)  # type: ignore[no-untyped-call]
    if held is None or held[0] != version:
        _known[weight_VD] = held = (version, _measured(weight_VD, _halfway(weight_VD.shape[1])))
    return held[1]


def _measured(weight_VD: Tensor, halfway: int) -> Growth:
    vocabulary, width = weight_VD.shape
    chance = torch.Generator().manual_seed(0)
    chosen = torch.linspace(0, vocabulary - 1, min(_ROWS, vocabulary), device=weight_VD.device).long()
    rows_VD = weight_VD.detach()[chosen].contiguous()
    noise_VD = torch.randn(rows_VD.shape, generator=chance).to(weight_VD.device)
    length_V1 = rows_VD.float().norm(dim=1, keepdim=True).clamp(min=_TINY)
    leaning_VD = (noise_VD + _ALIGNED * rows_VD.float() / length_V1).to(weight_VD.dtype)
    random_VD = noise_VD.to(weight_VD.dtype)
    true_V = (leaning_VD.double() * rows_VD.double()).sum(1)
    grown = torch.ones(2, device=weight_VD.device)
    for step in (1, 0):
        found_V = products(leaning_VD, rows_VD, grown[1], halfway).diagonal()
        grown[step] = 1.0 + _lost(found_V, true_V)
    found_VV = products(random_VD, rows_VD, grown[1], halfway)
    true_VV = random_VD.double() @ rows_VD.double().T
    energy_D = rows_VD.double().var(0, correction=0)
    deviation_V1 = (random_VD.double().square() @ energy_D).clamp(min=_TINY).sqrt().unsqueeze(1)
    even, leaning = (_lost_by_moments(found_VV, true_VV, tilt * true_VV / deviation_V1) for tilt in (0.0, 1.0))
    ahead_D = 1.0 - torch.arange(width, device=weight_VD.device) / width
    early = (energy_D * ahead_D).sum() / energy_D.sum().clamp(min=_TINY)
    given = (grown[1].double() - 1.0) * energy_D[:halfway].sum() / energy_D.sum().clamp(min=_TINY)
    spread = torch.stack([even + given, leaning - even]) / early.clamp(min=_TINY)
    return Growth(grown, halfway, spread.float(), energy_D.float())


def _block(width: int) -> int:
    """Entries of the width that are multiplied at a time."""
    return next(size for size in (64, 32, 16) if width % size == 0)


def _halfway(width: int) -> int:
    return width // 2 // _block(width) * _block(width)


def _lost(found: Tensor, true: Tensor) -> Tensor:
    """How much smaller the found logits are than the true ones, by least squares."""
    lost: Tensor = (true * (true - found.double())).sum() / (true**2).sum().clamp(min=_TINY)
    return lost


def _lost_by_moments(found_TV: Tensor, true_TV: Tensor, log_weights_TV: Tensor) -> Tensor:
    """The same of the logits' distances from their mean, both under weights."""
    p_TV = torch.softmax(log_weights_TV, 1)
    apart_TV = p_TV.sqrt() * (true_TV - (p_TV * true_TV).sum(1, keepdim=True))
    lost_TV = true_TV - found_TV.double()
    return _lost(apart_TV - p_TV.sqrt() * (lost_TV - (p_TV * lost_TV).sum(1, keepdim=True)), apart_TV)


def products(states_TD: Tensor, rows_VD: Tensor, grow_halfway: Tensor, halfway: int) -> Tensor:
    """Logits as the sweep's tensor-core products make them, float32 [T, V]."""
    (tokens, width), vocabulary = states_TD.shape, rows_VD.shape[0]
    out = torch.empty(tokens, vocabulary, dtype=torch.float32, device=states_TD.device)
    block_width = _block(width)
    launch(
        _products,
        (-(-tokens // 64), -(-vocabulary // 64)),
        out,
        descriptor(states_TD, [64, block_width]),
        descriptor(rows_VD, [64, block_width]),
        out,
        grow_halfway,
        tokens,
        vocabulary,
        width,
        halfway,
        BLOCK=64,
        BLOCK_D=block_width,
    )
    return out


@jit
def _products(
    states: Value,
    head: Value,
    out: Value,
    grow_halfway: Value,
    tokens: Value,
    vocabulary: Value,
    width: Value,
    halfway: Value,
    BLOCK: constexpr,
    BLOCK_D: constexpr,
) -> None:
    row = tl.program_id(0) * BLOCK
    column = tl.program_id(1) * BLOCK
    z = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    for start in range(0, halfway, BLOCK_D):
        z = tl.dot(states.load([row, start]), head.load([column, start]).T, z)
    z *= tl.load(grow_halfway)
    for start in range(halfway, width, BLOCK_D):
        z = tl.dot(states.load([row, start]), head.load([column, start]).T, z)
    rows = (row + tl.arange(0, BLOCK))[:, None]
    columns = (column + tl.arange(0, BLOCK))[None, :]
    tl.store(out + rows * vocabulary + columns, z, mask=(rows < tokens) & (columns < vocabulary))
