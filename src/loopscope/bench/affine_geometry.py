"""A, Q, ΔU, both divergences, the entropies and φ at 21 scales: the whole geometry of an update under an affine head.

Held against the two bare logit products, which nothing can do without, and against the paper's way: gradient,
Hessian–vector product, and every scale read out again. That runs in FP32 with TF32 off, a chunk of tokens at a time,
the head converted beforehand. Each token's state is a row of its own, so one product serves all tokens of a chunk.

Shapes: T reference tokens, t those of a chunk, D hidden width, V vocabulary entries, K scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.bench.clock import Call
from loopscope.bench.energy import meter
from loopscope.bench.row import Reference, Row, Setting, at_least, at_most
from loopscope.bench.sizes import PEAKED, TYPICAL, Update, following, random_update, with_likely_targets
from loopscope.readout import Survey, affine_path_from_states
from loopscope.readout.affine.even import EvenScales
from loopscope.readout.affine.in_a_row import surveys
from loopscope.readout.affine.sources import blocks, full_precision_products

SCALES = 21
CONSECUTIVE = 7
CURVATURE_AT = (0.0, 0.25, 0.5, 0.75, 1.0)
PRODUCTS = "the two logit products alone"
PAPER = "Hessian–vector product, endpoint utilities and grid"


def survey(update: Update, curvature_at: tuple[float, ...] = CURVATURE_AT, *, check: bool = True) -> Survey:
    """The geometry of every token by itself; unchecked, as a pass asks for it, nothing waits for the device."""
    path = affine_path_from_states(
        update.h_TD, update.h_plus_TD, update.weight_VD, None, update.targets_T, dtype=torch.float32, check=check
    )
    return path.per_token().survey(SCALES, curvature_at, order=2)


def surveys_in_a_row(updates: Sequence[Update]) -> list[Survey]:
    """The same of updates that follow one another, as a pass asks for them."""
    paths = [
        affine_path_from_states(
            update.h_TD, update.h_plus_TD, update.weight_VD, None, update.targets_T, dtype=torch.float32, check=False
        ).per_token()
        for update in updates
    ]
    return surveys(paths, SCALES, CURVATURE_AT, 2)


def rows(setting: Setting) -> list[Row]:
    """At a typical softmax with both references; what a pass asks for, of one update and several; at a peaked one."""
    sizes = setting.sizes
    shape = (sizes.tokens, sizes.hidden, sizes.vocabulary)
    typical = with_likely_targets(random_update(*shape, setting.device, spread=TYPICAL))
    found = [_row("geometry", "", setting, typical, with_paper=True)]
    more = f", and φ'' at {len(CURVATURE_AT)} scales, as a pass asks for it"
    found.append(_row("geometry:pass", more, setting, typical, curvature_at=CURVATURE_AT))
    if setting.on_gpu or not sizes.judged:  # a core gains nothing from several updates at a time
        found.append(_in_a_row(setting, typical))
    del typical
    peaked = with_likely_targets(random_update(*shape, setting.device, spread=PEAKED))
    return [*found, _row("geometry:peaked", ", softmaxes with one likely entry", setting, peaked)]


def _row(
    name: str,
    variant: str,
    setting: Setting,
    update: Update,
    *,
    curvature_at: tuple[float, ...] = (0.0,),
    with_paper: bool = False,
) -> Row:
    sizes, clock = setting.sizes, setting.clock
    products = _BareProducts(update, on_gpu=setting.on_gpu)
    calls: dict[str, Call] = {"ours": lambda: survey(update, curvature_at, check=False), "products": products}
    raced = clock.race(calls, sizes.repeats, warm_ups=2, in_a_row=8 if setting.on_gpu else 1)
    ours = raced["ours"]
    references = [Reference(PRODUCTS, raced["products"], floor=True)]
    counts = meter(setting.device) if sizes.judged else None
    figures = {} if counts is None else counts.figures(calls)
    if setting.on_gpu:
        figures["share_swept_again"] = _swept_again(update, curvature_at)
    goals = []
    if setting.on_gpu:
        ratio, most = references[0].ratio(ours), 1.2 if curvature_at == (0.0,) else 1.4
        text = f"at most {most:g} times the two bare BF16 products"
        goals.append(at_most(text, most, ratio, judged=sizes.judged, against=PRODUCTS))
    if with_paper:
        del products, calls
        more, differences = _paper(setting, update)
        figures |= differences
        references += more
        ratio, least = more[-1].ratio(ours), 130.0 if setting.on_gpu else 8.0
        text = f"at least {least:g} times faster than Hessian–vector product and grid"
        goals.append(at_least(text, least, ratio, judged=sizes.judged, against=PAPER))
        shared = Reference("", more[0].measured.plus(more[2].measured)).ratio(ours)
        figures["ratio_if_the_grid_serves_the_endpoint_utilities"] = shared
    what = f"A, Q, ΔU, KL both ways, entropies and φ at {SCALES} scales under an affine head{variant}"
    return Row(name, what, update.size, "s", ours, tuple(references), tuple(goals), figures)


def _swept_again(update: Update, curvature_at: tuple[float, ...]) -> float:
    """Of all tokens, those for which the kernels needed every scale of the grid."""
    from loopscope.readout.affine.fused.launches import FusedHead
    from loopscope.readout.affine.fused.path import fused_survey

    head = FusedHead(update.h_TD, update.h_plus_TD, update.weight_VD, None)
    found = fused_survey(head, update.targets_T, EvenScales.of(SCALES, curvature_at), 2)
    return float(found.again_T.mean())


def _in_a_row(setting: Setting, update: Update) -> Row:
    """Updates that follow one another, as a pass over several transitions asks for them; the floor: each state once."""
    sizes = setting.sizes
    updates = [update]
    for seed in range(1, CONSECUTIVE):
        updates.append(following(updates[-1], seed))
    products = _BareProducts(*updates, on_gpu=setting.on_gpu)
    calls: dict[str, Call] = {
        "ours": lambda: surveys_in_a_row(updates),
        "products": products,
    }
    raced = setting.clock.race(calls, sizes.repeats, in_a_row=2 if setting.on_gpu else 1)
    states = CONSECUTIVE + 1
    reference = Reference(f"{states} logit products alone", raced["products"], floor=True)
    text = f"at most 1.3 times {states} bare BF16 products"
    goal = at_most(text, 1.3, reference.ratio(raced["ours"]), judged=sizes.judged, against=reference.name)
    what = f"The geometry as a pass asks for it of {CONSECUTIVE} updates that follow one another"
    return Row("geometry:in_a_row", what, update.size, "s", raced["ours"], (reference,), (goal,))


class SlopeAndCurvature(NamedTuple):
    """A = ⟨∇U(H), D⟩ and φ''(0) = ⟨D, ∇²U(H)[D]⟩ of each token."""

    slope: Tensor
    curvature: Tensor


class PaperWay:
    """The update in FP32, asked one question at a time."""

    def __init__(self, update: Update, chunk: int) -> None:
        self._h_TD = update.h_TD.float()
        self._d_TD = update.h_plus_TD.float() - self._h_TD
        self._weight_DV = update.weight_VD.float().T
        self._targets_T = update.targets_T
        self._chunk = chunk

    def _utility(self, state: Tensor, targets_t: Tensor) -> Tensor:
        with full_precision_products():
            logits = state @ self._weight_DV
        return torch.log_softmax(logits, -1).gather(1, targets_t.unsqueeze(1))[:, 0]

    def differentiated(self) -> SlopeAndCurvature:
        """A and φ''(0) by a gradient and a Hessian–vector product."""
        slopes, curvatures = [], []
        for rows in blocks(self._h_TD.shape[0], self._chunk):
            d_tD = self._d_TD[rows]
            with torch.enable_grad(), full_precision_products():
                h_tD = self._h_TD[rows].detach().requires_grad_(True)
                utility = self._utility(h_tD, self._targets_T[rows]).sum()
                (gradient_tD,) = torch.autograd.grad(utility, h_tD, create_graph=True)
                (product_tD,) = torch.autograd.grad((gradient_tD * d_tD).sum(), h_tD)
            slopes.append((gradient_tD.detach() * d_tD).sum(1))
            curvatures.append((product_tD * d_tD).sum(1))
        return SlopeAndCurvature(torch.cat(slopes), torch.cat(curvatures))

    def utilities(self, scales: list[float]) -> Tensor:
        """U(H + αD) at some scales, each a readout of its own, [T, K]."""
        columns = []
        with torch.no_grad():
            for alpha in scales:
                chunks = [
                    self._utility(self._h_TD[rows] + alpha * self._d_TD[rows], self._targets_T[rows])
                    for rows in blocks(self._h_TD.shape[0], self._chunk)
                ]
                columns.append(torch.cat(chunks))
        return torch.stack(columns, 1)


class _BareProducts:
    """H Wᵀ and H⁺ Wᵀ and nothing else: BF16 on a GPU, FP32 of converted operands on a CPU."""

    def __init__(self, update: Update, *more: Update, on_gpu: bool) -> None:
        dtype = torch.bfloat16 if on_gpu else torch.float32
        states = (update.h_TD, update.h_plus_TD, *(following.h_plus_TD for following in more))
        self._states = [state.to(dtype) for state in states]
        self._weight_DV = update.weight_VD.to(dtype).T
        tokens, vocabulary = update.h_TD.shape[0], update.weight_VD.shape[0]
        self._out = torch.empty(tokens, vocabulary, dtype=dtype, device=update.h_TD.device)

    def __call__(self) -> None:
        with full_precision_products():
            for state in self._states:
                torch.mm(state, self._weight_DV, out=self._out)


def _paper(setting: Setting, update: Update) -> tuple[list[Reference], dict[str, float]]:
    """The paper's way: each of its steps, all of it, and how far its numbers are from ours."""
    paper = PaperWay(update, setting.sizes.chunk)
    scales = [k / (SCALES - 1) for k in range(SCALES)]
    derivatives, grids = [], []
    calls: dict[str, Call] = {
        "Hessian–vector product": lambda: derivatives.append(paper.differentiated()),
        "endpoint utilities": lambda: paper.utilities([0.0, 1.0]),
        "grid": lambda: grids.append(paper.utilities(scales)),
    }
    # A grid is the endpoint utilities' kernels over and over: one warm-up of those is enough where it takes long.
    long = setting.clock.once(calls["endpoint utilities"]) > 0.2
    raced = setting.clock.race(calls, setting.sizes.slow_repeats, warm_ups=0 if long else 1)
    steps = [Reference(name, found) for name, found in raced.items()]
    whole = steps[0].measured.plus(steps[1].measured).plus(steps[2].measured)
    ours, by_hvp, gains = survey(update), derivatives[-1], (grids[-1] - grids[-1][:, :1]).double()
    figures = {
        "largest_difference_A": float((ours.derivatives[1, :, 0] - by_hvp.slope).abs().max()),
        "largest_difference_curvature": float((ours.derivatives[2, :, 0] - by_hvp.curvature).abs().max()),
        "largest_difference_gain": float((ours.gains - gains).abs().max()),
    }
    return [*steps, Reference(PAPER, whole)], figures
