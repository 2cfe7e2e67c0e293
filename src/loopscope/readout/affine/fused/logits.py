"""Logits beside the sweep: the reference labels' own at both states, and by how much tensor cores' sums are too small.

**Reference labels.** Products of BF16 numbers are exact in FP32 and added up in float64, so these are the true logits
rounded once.

**Growth.** A product over the hidden width is accumulated 16 entries at a time. An accumulator that is cut off after
each step loses half a unit in its last place on average, towards zero: units are proportional to the running sum, and
the running sum grows towards z, so the loss is on average proportional to z. Left alone it acts like a temperature a
little above 1, the same for every token, which averages over the vocabulary do not average away: at width 2048 some
millionths of every logit, several times the rounding of an FP32 product. What remains after z is multiplied by
1 + β has no preferred sign and is of the size of FP32 rounding.

β is measured, once for each head, on the device's tensor cores in the sweep's own order against float64, and twice:
on logits that lie far above the others, where those are that have probability, for the weights; and on random logits,
which is what a spread over the whole vocabulary consists of, for the central moments of flat distributions. A device
that rounds gets β = 0 but for noise. States and rows are the same every time, so β depends on the device and the head
alone. A distribution that is nearly uniform leans to larger logits, which lose more than random ones do, and its
variance stays too small by a few 1e-7 of itself.

Shapes: T tokens or states, V rows of the head, D hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from loopscope.kernels.language import Value, constexpr, descriptor, jit, launch, power_of_two, tl

_BLOCK = 2048


def target_logits(
    h_TD: Tensor, h_plus_TD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_T: Tensor
) -> Tensor:
    """z_y(0) and z_y(1) of every token, float32 [2, T]."""
    tokens, width = h_TD.shape
    out = torch.empty(2, tokens, dtype=torch.float32, device=h_TD.device)
    launch(
        _target_logits,
        (tokens,),
        h_TD,
        h_TD,
        h_plus_TD,
        weight_VD,
        weight_VD if bias_V is None else bias_V,
        targets_T,
        out,
        tokens,
        width,
        h_TD.stride(0),
        h_plus_TD.stride(0),
        weight_VD.stride(0),
        HAS_BIAS=bias_V is not None,
        BLOCK=min(_BLOCK, power_of_two(width)),
    )
    return out


@jit
def _target_logits(
    h: Value,
    h_plus: Value,
    weight: Value,
    bias: Value,
    targets: Value,
    out: Value,
    tokens: Value,
    width: Value,
    h_stride: Value,
    h_plus_stride: Value,
    weight_stride: Value,
    HAS_BIAS: constexpr,
    BLOCK: constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + token)
    sum0 = tl.zeros([BLOCK], dtype=tl.float64)
    sum1 = tl.zeros([BLOCK], dtype=tl.float64)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < width
        entry = tl.load(weight + target * weight_stride + columns, mask=inside, other=0.0).to(tl.float32)
        sum0 += (tl.load(h + token * h_stride + columns, mask=inside, other=0.0).to(tl.float32) * entry).to(tl.float64)
        sum1 += (tl.load(h_plus + token * h_plus_stride + columns, mask=inside, other=0.0).to(tl.float32) * entry).to(
            tl.float64
        )
    z0 = tl.sum(sum0, 0)
    z1 = tl.sum(sum1, 0)
    if HAS_BIAS:
        shift = tl.load(bias + target).to(tl.float64)
        z0 += shift
        z1 += shift
    tl.store(out + token, z0.to(tl.float32))
    tl.store(out + tokens + token, z1.to(tl.float32))


_ROWS = 512
_ALIGNED = 5.0
"""How many deviations the logits lie above 0 on which β is measured: where those lie that have probability."""

_known = WeakIdKeyDictionary()


def growth_of(weight_VD: Tensor) -> Tensor:
    """1 + β of likely logits and of all of them, for products with this head: float32 [2] on its device."""
    version = 0 if weight_VD.is_inference() else weight_VD._version
    held: tuple[int, Tensor] | None = _known.get(weight_VD)  # type: ignore[no-untyped-call]
    if held is None or held[0] != version:
        _known[weight_VD] = held = (version, _measured(weight_VD))
    return held[1]


def _measured(weight_VD: Tensor) -> Tensor:
    vocabulary = weight_VD.shape[0]
    chance = torch.Generator().manual_seed(0)
    chosen = torch.linspace(0, vocabulary - 1, min(_ROWS, vocabulary), device=weight_VD.device).long()
    rows_VD = weight_VD.detach()[chosen].contiguous()
    noise_VD = torch.randn(rows_VD.shape, generator=chance).to(weight_VD.device)
    length_V1 = rows_VD.float().norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    leaning_VD = (noise_VD + _ALIGNED * rows_VD.float() / length_V1).to(weight_VD.dtype)
    random_VD = noise_VD.to(weight_VD.dtype)
    likely = _lost(products(leaning_VD, rows_VD).diagonal(), (leaning_VD.double() * rows_VD.double()).sum(1))
    anywhere = _lost(products(random_VD, rows_VD), random_VD.double() @ rows_VD.double().T)
    return 1.0 + torch.stack([likely, anywhere]).float()


def _lost(found: Tensor, true: Tensor) -> Tensor:
    """How much smaller the found logits are than the true ones, by least squares."""
    lost: Tensor = (true * (true - found.double())).sum() / (true**2).sum().clamp(min=torch.finfo(torch.float64).tiny)
    return lost


def products(states_TD: Tensor, rows_VD: Tensor) -> Tensor:
    """Logits as the sweep's tensor-core products make them, float32 [T, V]."""
    (tokens, width), vocabulary = states_TD.shape, rows_VD.shape[0]
    out = torch.empty(tokens, vocabulary, dtype=torch.float32, device=states_TD.device)
    block_width = next(size for size in (64, 32, 16) if width % size == 0)
    launch(
        _products,
        (-(-tokens // 64), -(-vocabulary // 64)),
        out,
        descriptor(states_TD, [64, block_width]),
        descriptor(rows_VD, [64, block_width]),
        out,
        tokens,
        vocabulary,
        width,
        BLOCK=64,
        BLOCK_D=block_width,
    )
    return out


@jit
def _products(
    states: Value,
    head: Value,
    out: Value,
    tokens: Value,
    vocabulary: Value,
    width: Value,
    BLOCK: constexpr,
    BLOCK_D: constexpr,
) -> None:
    row = tl.program_id(0) * BLOCK
    column = tl.program_id(1) * BLOCK
    z = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    for start in range(0, width, BLOCK_D):
        z = tl.dot(states.load([row, start]), head.load([column, start]).T, z)
    rows = (row + tl.arange(0, BLOCK))[:, None]
    columns = (column + tl.arange(0, BLOCK))[None, :]
    tl.store(out + rows * vocabulary + columns, z, mask=(rows < tokens) & (columns < vocabulary))
