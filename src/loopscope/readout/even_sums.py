r"""Weighted sums of one vocabulary block at evenly spaced scales, one exponential for many scales.

For scales α_k = k h the weights of an entry form a geometric progression, exp z(α_{k+1}) = exp z(α_k) · exp(h v). A run
of g scales is laid out as I rows of J: with d one entry of the block, u = v − v_d and k = k₀ + iJ + j,

    w_a(α_k) = [exp(z_a(0) − z_d(0) + α_{k₀} u_a) · Rᵢ] · r_j,    r_j = exp(h u_a)^j,    R_i = exp(J h u_a)^i,

so that I + J multiplications and three exponentials serve g = I·J scales, and the sums Σ_a w_a(α_k) (u_a − μ)^m at all
of them are one matrix product: rows [R-powers × m] times entries times columns [r-powers].

**Error of a weight.** Let ε = 2⁻⁵³ and exp be right to 2ε. Powers are formed by doubling, r^{2n} = (r^n)², so r_j
carries at most j(e_r + ε) where e_r ≤ 2ε + 2ε|hu|, from exp and its argument; likewise R_i. Together with the first
exponential and three products, to first order,

    |δw/w| ≤ ε [3(I + J) + 4|α_k − α_{k₀}||u| + 3|α_{k₀} u| + 2|z_a(0) − z_d(0)| + 8].

The last terms are what rounding the exponent costs any method that takes exp z. A run is no wider than
`_WIDTH`/range(v), so the second is at most 32 ε, and I + J ≤ 75 for 257 scales with four moments: about 3e-14 at worst.

**Error of a moment.** The sums are about c = v_d + μ, and Σ w (v − m)² = Σ w (v − c)² − W (m − c)² loses a factor
E[(v − c)²]/Var[v]. The origin is the displacement of the entry d that is likeliest at the run's middle row, where its
terms vanish exactly, so that a peaked softmax loses nothing; and the mean there if d holds less than a fifth of the
block's mass. Away from the middle by δ the probabilities have changed by e^{±|δ| range(v)} at most, with
|δ| range(v) ≤ `_WIDTH`/2; the factor is then at most 6 e⁸, and about e⁴ where two entries trade places inside a run.

Shapes: t tokens, c of them at a time, b vocabulary entries, K scales, M of them with moments, G runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.moments import Moments

START_ORDER = 4
"""The moments that node 0 always has: a tiny displacement's gains are their Taylor polynomial."""

DOMINANT = 4.0
"""The mass Σ_{a≠d} w_a beyond which moments are taken about the mean and not about v_d."""

_WIDTH = 8.0  # of a run of scales, times the range of v: e^{4} is how much weights grow from its middle to its end
_WORKSPACE = 1 << 20  # elements: 8 MiB of float64, most of which stay in a core's caches


@dataclass(frozen=True)
class EvenNodes:
    """Scales k/(count − 1), and the `places` among them where moments up to `order` are wanted."""

    count: int
    places: tuple[int, ...]
    order: int

    @property
    def step(self) -> float:
        """The distance of two scales."""
        return 1.0 / (self.count - 1)

    def scales(self, device: torch.device) -> Tensor:
        """All scales, float64 [K]."""
        return torch.arange(self.count, dtype=torch.float64, device=device) / (self.count - 1)


class LogMass(NamedTuple):
    """log Σ exp z(α) over part of the vocabulary as an unevaluated sum, z0_d + α v_d + log1p(others); [t, K] each."""

    z0_d: Tensor
    v_d: Tensor
    others: Tensor


class EvenSums(NamedTuple):
    """One part of the vocabulary: its mass at all K scales, moments at M of them, and at scale 0 up to the fourth."""

    mass: LogMass
    wanted: Moments
    start: Moments


class _Run(NamedTuple):
    """Consecutive scales first … first + size − 1, in rows of `columns`.

    The lines of its table are the weights at the head of each row; then, for every order, those of `moment_rows` times
    (u − μ)^order; and, where scale 0 is among them, row 0 with the orders that are still missing up to `START_ORDER`.
    """

    first: int
    size: int
    columns: int
    moment_rows: tuple[int, ...]
    order: int

    @property
    def stop(self) -> int:
        return self.first + self.size

    @property
    def rows(self) -> int:
        return -(-self.size // self.columns)

    @property
    def lines(self) -> int:
        return self.rows + self.order * len(self.moment_rows) + len(self.extra_orders)

    @property
    def extra_orders(self) -> range:
        return range(self.order + 1, START_ORDER + 1) if self.first == 0 else range(0)

    def line(self, order: int, row: int = 0) -> int:
        """The line of a row's weights times (u − μ)^order."""
        if order == 0:
            return row
        if order > self.order:
            return self.lines - START_ORDER + order - 1
        return self.rows + (order - 1) * len(self.moment_rows) + self.moment_rows.index(row)


def runs(nodes: EvenNodes, spread: float) -> list[_Run]:
    """The scales in runs that are narrow enough for a displacement of this range."""
    size = nodes.count
    if spread > 0.0:
        size = min(size, 1 + int(min(_WIDTH / (spread * nodes.step), nodes.count)))
    size = -(-nodes.count // -(-nodes.count // size))  # as many runs, of nearly the same length
    share = min(1.0, len(nodes.places) / nodes.count)
    columns = math.ceil(math.sqrt(size * (1.0 + share * nodes.order)))
    return list(_laid_out(nodes, size, min(columns, size)))


def _laid_out(nodes: EvenNodes, size: int, columns: int) -> Iterator[_Run]:
    for first in range(0, nodes.count, size):
        stop = min(first + size, nodes.count)
        rows = {(place - first) // columns for place in nodes.places if first <= place < stop}
        yield _Run(first, stop - first, columns, tuple(sorted(rows | {0} if first == 0 else rows)), nodes.order)


def even_sums(z0_tb: Tensor, v_tb: Tensor, v_y_t1: Tensor, spread: float, nodes: EvenNodes) -> EvenSums:
    """The sums of one block; `spread` is the largest range of v over the block's entries of any token."""
    layout = runs(nodes, spread)
    tokens, width = z0_tb.shape
    lines = max(run.columns + run.lines for run in layout)
    chunk = max(1, min(tokens, _WORKSPACE // (lines * width)))
    space = torch.empty(chunk * lines * width, dtype=torch.float64, device=z0_tb.device)
    raw = _Raw.empty(tokens, nodes, len(layout), z0_tb.device)
    for first in range(0, tokens, chunk):
        rows = slice(first, min(first + chunk, tokens))
        for index, run in enumerate(layout):
            _sum_run(z0_tb[rows], v_tb[rows], nodes, run, index, space, raw.of(rows))
    return raw.finished(nodes, layout, v_y_t1)


class _Raw(NamedTuple):
    """Sums as the matrix products give them, each run's about its own origin v_d + μ, entry d left out."""

    others_tK: Tensor
    sums_mtM: Tensor
    start_mt1: Tensor
    z0_d_tG: Tensor
    v_d_tG: Tensor
    mu_tG: Tensor

    @classmethod
    def empty(cls, tokens: int, nodes: EvenNodes, groups: int, device: torch.device) -> _Raw:
        def new(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float64, device=device)

        per_run = (new(tokens, groups) for _ in range(3))
        places = len(nodes.places)
        return cls(new(tokens, nodes.count), new(nodes.order, tokens, places), new(START_ORDER, tokens, 1), *per_run)

    def of(self, rows: slice) -> _Raw:
        """The same, of some tokens."""
        per_run = (field[rows] for field in (self.z0_d_tG, self.v_d_tG, self.mu_tG))
        return _Raw(self.others_tK[rows], self.sums_mtM[:, rows], self.start_mt1[:, rows], *per_run)

    def finished(self, nodes: EvenNodes, layout: list[_Run], v_y_t1: Tensor) -> EvenSums:
        """Sums about each origin turned into moments about each mean."""
        of_node = [index for index, run in enumerate(layout) for _ in range(run.size)]
        mass = LogMass(self.z0_d_tG[:, of_node], self.v_d_tG[:, of_node], self.others_tK)

        def moments(places: list[int], sums_mtM: Tensor) -> Moments:
            at = LogMass(*(field[:, places] for field in mass))
            return moments_about(at, self.mu_tG[:, [of_node[place] for place in places]], sums_mtM, v_y_t1)

        return EvenSums(mass, moments(list(nodes.places), self.sums_mtM), moments([0], self.start_mt1))


def moments_about(at: LogMass, mu_tM: Tensor, sums_mtM: Tensor, v_y_t1: Tensor) -> Moments:
    """Moments about the mean from Σ_{a≠d} w (u − μ)^m, m = 1, …; d itself adds (−μ)^m."""
    mass = 1.0 + at.others
    S = [part + (-mu_tM) ** m for m, part in enumerate(sums_mtM, 1)]
    if not S:
        return Moments(*at, torch.zeros_like(mass), (), torch.zeros_like(mass))
    m = S[0] / mass
    central = []
    if len(S) >= 2:
        central.append((S[1] - m * S[0]).clamp(min=0.0))
    if len(S) >= 3:
        central.append(S[2] - 3.0 * m * S[1] + 2.0 * m**2 * S[0])
    if len(S) >= 4:
        central.append(S[3] - 4.0 * m * S[2] + 6.0 * m**2 * S[1] - 3.0 * m**3 * S[0])
    slope = mass * ((v_y_t1 - at.v_d) - mu_tM) - S[0]
    return Moments(*at, mu_tM + m, tuple(central), slope)


def _sum_run(z0_cb: Tensor, v_cb: Tensor, nodes: EvenNodes, run: _Run, index: int, space: Tensor, out: _Raw) -> None:
    """One run of scales for a few tokens."""
    tokens, width = z0_cb.shape
    columns_cJb = space[: tokens * run.columns * width].view(tokens, run.columns, width)
    table_cLb = space[columns_cJb.numel() :][: tokens * run.lines * width].view(tokens, run.lines, width)

    start = run.first * nodes.step
    middle = run.rows // 2
    scratch_cb = torch.add(z0_cb, v_cb, alpha=start + middle * run.columns * nodes.step)
    d_c1 = scratch_cb.argmax(1, keepdim=True)
    z0_d_c1, v_d_c1 = z0_cb.gather(1, d_c1), v_cb.gather(1, d_c1)
    u_cb = v_cb - v_d_c1
    torch.sub(z0_cb, z0_d_c1, out=scratch_cb)
    torch.exp(scratch_cb.add_(u_cb, alpha=start), out=table_cLb[:, 0])
    table_cLb[:, 0].scatter_(1, d_c1, 0.0)
    _geometric(table_cLb[:, : run.rows], u_cb, run.columns * nodes.step)
    columns_cJb[:, 0] = 1.0
    _geometric(columns_cJb, u_cb, nodes.step)

    mass_c1 = table_cLb[:, middle].sum(1, keepdim=True)
    mean_c1 = torch.mul(table_cLb[:, middle], u_cb, out=scratch_cb).sum(1, keepdim=True) / (1.0 + mass_c1)
    mu_c1 = torch.where(mass_c1 > DOMINANT, mean_c1, 0.0)
    _times_powers(table_cLb, u_cb.sub_(mu_c1), run)

    found_cLJ = torch.bmm(table_cLb, columns_cJb.transpose(1, 2))
    out.others_tK[:, run.first : run.stop] = found_cLJ[:, : run.rows].flatten(1)[:, : run.size]
    out.z0_d_tG[:, index], out.v_d_tG[:, index], out.mu_tG[:, index] = z0_d_c1[:, 0], v_d_c1[:, 0], mu_c1[:, 0]
    here = [m for m, place in enumerate(nodes.places) if run.first <= place < run.stop]
    at = [divmod(nodes.places[m] - run.first, run.columns) for m in here]
    for order in range(1, nodes.order + 1 if here else 1):
        lines = [run.line(order, row) for row, _ in at]
        out.sums_mtM[order - 1][:, here] = found_cLJ[:, lines, [column for _, column in at]]
    if run.first == 0:
        out.start_mt1[:, :, 0] = found_cLJ[:, [run.line(m) for m in range(1, START_ORDER + 1)], 0].T


def _geometric(lines_cnb: Tensor, u_cb: Tensor, step: float) -> None:
    """Fills lines 1, 2, … with line 0 times exp(step·u), exp(step·u)², …, by doubling."""
    count = lines_cnb.shape[1]
    if count == 1:
        return
    power_cb = torch.exp(step * u_cb)
    done = 1
    while done < count:
        more = min(done, count - done)
        torch.mul(lines_cnb[:, :more], power_cb.unsqueeze(1), out=lines_cnb[:, done : done + more])
        done += more
        if done < count:
            power_cb *= power_cb


def _times_powers(table_cLb: Tensor, u_cb: Tensor, run: _Run) -> None:
    """Fills the lines after the weights themselves."""
    count, u_c1b = len(run.moment_rows), u_cb.unsqueeze(1)
    if run.order and count:
        weights_cnb = table_cLb[:, : run.rows] if count == run.rows else table_cLb[:, list(run.moment_rows)]
        torch.mul(weights_cnb, u_c1b, out=table_cLb[:, run.rows : run.rows + count])
    for line in range(run.rows + count, run.rows + run.order * count, count or 1):
        torch.mul(table_cLb[:, line - count : line], u_c1b, out=table_cLb[:, line : line + count])
    for order in run.extra_orders:
        torch.mul(table_cLb[:, run.line(order - 1)], u_cb, out=table_cLb[:, run.line(order)])
