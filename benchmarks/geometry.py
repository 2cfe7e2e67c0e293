"""The geometry of an update under an affine head: A, Q, ΔU, KL both ways, entropies and φ at 21 scales.

References are the two logit products alone, which nothing can do without (on a GPU with BF16 and with FP32 logits, the
latter being what is reduced), and the paper's way: gradient, Hessian–vector
product, and every scale read out again, in FP32 with TF32 off, a chunk of tokens at a time. The `accuracy` rows compare
errors against FP64 with those of plain FP32.

Shapes: T reference tokens, t those of a chunk, D hidden width, V vocabulary entries, K scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout import AffinePath, Survey, affine_path_from_states
from loopscope.readout.affine.path import surveys
from loopscope.readout.blocks import blocks, full_precision_products
from timing import OURS, Call, Row, Spread, race

SCALES = 21
GRID = [k / (SCALES - 1) for k in range(SCALES)]
CURVATURE_AT = (0.0, 0.25, 0.5, 0.75, 1.0)
CONSECUTIVE = 7
PRODUCTS, WITH_FP32 = "the two logit products alone", "the same with FP32 logits"
PAPER = "Hessian–vector product, endpoint utilities and grid"
PLAIN = "plain FP32"
FLAT, TYPICAL, PEAKED = 0.9, 7.2, 27.0
"""Standard deviations of a token's logits: entropies of about 10, 2 and less than 0.1 nats at 50,000 entries."""
STEP, SMALL_STEP = 0.3, 0.01
CASES = {
    "flat": ("flat softmaxes", FLAT, STEP),
    "typical": ("softmaxes of a few likely entries", TYPICAL, STEP),
    "peaked": ("softmaxes of one likely entry", PEAKED, STEP),
    "small": ("a displacement of a hundredth of the state", TYPICAL, SMALL_STEP),
}


class Update(NamedTuple):
    """Two BF16 states of unit RMS at the reference tokens, the BF16 head that reads them, and the reference labels."""

    h_TD: Tensor
    h_plus_TD: Tensor
    weight_VD: Tensor
    targets_T: Tensor

    @property
    def size(self) -> dict[str, int]:
        """Tokens, width and vocabulary."""
        tokens, hidden = self.h_TD.shape
        return {"tokens": tokens, "hidden": hidden, "vocabulary": self.weight_VD.shape[0]}

    def followed(self) -> Update:
        """An update of the same tokens that starts where this one ends."""
        return self._replace(h_TD=self.h_plus_TD, h_plus_TD=_moved(self.h_plus_TD, STEP))


def random_update(
    shape: tuple[int, int, int], device: torch.device, spread: float = TYPICAL, step: float = STEP
) -> Update:
    """A random update; every second label is the likeliest one at H⁺."""
    tokens, hidden, vocabulary = shape
    torch.manual_seed(0)
    h_TD = _unit(torch.randn(tokens, hidden, device=device)).bfloat16()
    h_plus_TD = _moved(h_TD, step)
    weight_VD = (torch.randn(vocabulary, hidden, device=device) * (spread / hidden**0.5)).bfloat16()
    targets_T = torch.randint(vocabulary, (tokens,), device=device)
    targets_T[::2] = (h_plus_TD[::2].float() @ weight_VD.float().T).argmax(1)
    return Update(h_TD, h_plus_TD, weight_VD, targets_T)


def _moved(h_TD: Tensor, step: float) -> Tensor:
    return _unit(h_TD.float() + step * torch.randn(h_TD.shape, device=h_TD.device)).bfloat16()


def _unit(h_TD: Tensor) -> Tensor:
    return h_TD / h_TD.square().mean(1, keepdim=True).sqrt()


def survey(update: Update, curvature_at: Sequence[float] = (0.0,)) -> Survey:
    """The geometry of every token, without checks that wait for the device."""
    return _path(update).survey(SCALES, curvature_at, order=2)


def consecutive(updates: Sequence[Update]) -> list[Survey]:
    """The geometry of updates that follow one another, as a pass computes it."""
    return surveys([_path(update) for update in updates], SCALES, CURVATURE_AT, 2)


def _path(update: Update) -> AffinePath:
    path = affine_path_from_states(*update[:3], None, update.targets_T, dtype=torch.float32, check=False)
    return path.per_token()


def bare_products(states: Sequence[Tensor], weight_VD: Tensor) -> dict[str, Call]:
    """H Wᵀ of each state and nothing else, by name; on a CPU in FP32."""
    name = PRODUCTS if len(states) == 2 else f"{len(states)} logit products alone"
    dtype = torch.bfloat16 if weight_VD.is_cuda else torch.float32
    converted, weight_DV = [h_TD.to(dtype) for h_TD in states], weight_VD.to(dtype).T

    def products(out_dtype: torch.dtype | None = None) -> None:
        with full_precision_products():
            for h_TD in converted:
                torch.mm(h_TD, weight_DV) if out_dtype is None else torch.mm(h_TD, weight_DV, out_dtype=out_dtype)

    calls: dict[str, Call] = {name: products}
    if weight_VD.is_cuda:
        calls[WITH_FP32] = lambda: products(out_dtype=torch.float32)
    return calls


def paper_way(update: Update, weight_DV: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """A and φ''(0) by a gradient and a Hessian–vector product, both endpoints, and gains on the grid [T, K]."""
    slopes, curvatures, gains = [], [], []

    def utility(h_tD: Tensor, targets_t: Tensor) -> Tensor:
        return torch.log_softmax(h_tD @ weight_DV, -1).gather(1, targets_t[:, None])[:, 0]

    with full_precision_products():
        for rows in blocks(len(update.h_TD), chunk):
            h_tD, y_t = update.h_TD[rows].float(), update.targets_T[rows]
            d_tD = update.h_plus_TD[rows].float() - h_tD
            with torch.enable_grad():
                at_tD = h_tD.clone().requires_grad_(True)
                (gradient_tD,) = torch.autograd.grad(utility(at_tD, y_t).sum(), at_tD, create_graph=True)
                slope_t = (gradient_tD * d_tD).sum(1)
                (product_tD,) = torch.autograd.grad(slope_t.sum(), at_tD)
            slopes.append(slope_t.detach())
            curvatures.append((product_tD * d_tD).sum(1))
            with torch.no_grad():
                start_t, _ = (utility(h_tD + alpha * d_tD, y_t) for alpha in (0.0, 1.0))
                gains.append(torch.stack([utility(h_tD + alpha * d_tD, y_t) - start_t for alpha in GRID], 1))
    return torch.cat(slopes), torch.cat(curvatures), torch.cat(gains)


WHAT = f"A, Q, ΔU, KL both ways, entropies and φ at {SCALES} scales under an affine head"


def against_paper(name: str, update: Update, chunk: int, repeats: int) -> Row:
    """One update against its products and against the paper's way, with the largest differences to the latter."""
    device, slow = update.h_TD.device, []
    products = bare_products(update[:2], update.weight_VD)
    values = _raced(update, {OURS: lambda: survey(update), **products}, repeats)
    weight_DV = update.weight_VD.float().T
    paper = {PAPER: lambda: slow.append(paper_way(update, weight_DV, chunk))}
    values |= race(device, paper, min(3, repeats), warm_ups=0)
    ours, (slope_T, curvature_T, gains_TK) = survey(update), slow[-1]
    differences = {
        "largest_difference_A": ours.derivatives[1, :, 0] - slope_T,
        "largest_difference_curvature": ours.derivatives[2, :, 0] - curvature_T,
        "largest_difference_gain": ours.gains - gains_TK,
    }
    figures = {key: float(difference.abs().max()) for key, difference in differences.items()}
    return Row(name, WHAT, update.size, values, figures=figures)


def against_products(name: str, what: str, call: Call, states: Sequence[Tensor], update: Update, repeats: int) -> Row:
    """A call against the bare products of so many states."""
    calls = {OURS: call, **bare_products(states, update.weight_VD)}
    return Row(name, what, update.size, _raced(update, calls, repeats))


def _raced(update: Update, calls: dict[str, Call], repeats: int) -> dict[str, Spread]:
    return race(update.h_TD.device, calls, repeats, warm_ups=2, in_a_row=8 if update.h_TD.is_cuda else 1)


def rows(device: torch.device, shape: tuple[int, int, int], chunk: int, repeats: int) -> list[Row]:
    """One update, the same as a pass computes it, seven that follow one another, and one with peaked softmaxes."""
    update, peaked = random_update(shape, device), random_update(shape, device, PEAKED)
    updates = [update]
    while len(updates) < CONSECUTIVE:
        updates.append(updates[-1].followed())
    states = [update.h_TD, *(one.h_plus_TD for one in updates)]
    curvatures = f"{WHAT}, and φ'' at {len(CURVATURE_AT)} scales, as a pass computes it"
    seven = f"The same of {CONSECUTIVE} updates that follow one another"
    likely = f"{WHAT}, softmaxes of one likely entry"
    return [
        against_paper("geometry", update, chunk, repeats),
        against_products(
            "geometry:pass", curvatures, lambda: survey(update, CURVATURE_AT), update[:2], update, repeats
        ),
        against_products("geometry:consecutive", seven, lambda: consecutive(updates), states, update, repeats),
        against_products("geometry:peaked", likely, lambda: survey(peaked), peaked[:2], peaked, repeats),
    ]


def accuracy_rows(device: torch.device, shape: tuple[int, int, int]) -> list[Row]:
    """One row per case, with the quantity whose error is largest compared with plain FP32."""
    cases = ((name, what, random_update(shape, device, *case)) for name, (what, *case) in CASES.items())
    return [_accuracy(f"accuracy:{name}", what, update) for name, what, update in cases]


def _accuracy(name: str, what: str, update: Update) -> Row:
    h_TD, h_plus_TD, weight_VD = (each.double() for each in update[:3])
    rows = 128 if h_TD.is_cuda else None
    path = affine_path_from_states(
        h_TD, h_plus_TD, weight_VD, None, update.targets_T, dtype=torch.float64, impl="reference", block_tokens=rows
    )
    exact = by_name(path.per_token().survey(SCALES, CURVATURE_AT, order=2))
    ours, plain = by_name(survey(update, CURVATURE_AT)), plain_geometry(update)
    errors = {
        quantity: (_rms(value), _rms(ours[quantity].double() - value), _rms(plain[quantity].double() - value))
        for quantity, value in exact.items()
    }
    worst = max(errors.values(), key=lambda error: error[1] / error[2])
    values = {OURS: (worst[1],) * 3, PLAIN: (worst[2],) * 3}
    return Row(name, f"RMS error against FP64 and that of plain FP32; {what}", update.size, values, "", errors=errors)


def _rms(value: Tensor) -> float:
    return float(value.double().square().mean().sqrt())


def plain_geometry(update: Update) -> dict[str, Tensor]:
    """What one would write down first: two FP32 products, then torch's softmax, log-softmax and moments."""
    y_T1, weight_DV = update.targets_T[:, None], update.weight_VD.float().T
    with full_precision_products():
        z0_TV, z1_TV = update.h_TD.float() @ weight_DV, update.h_plus_TD.float() @ weight_DV
    v_TV = z1_TV - z0_TV
    log_p_TV, log_q_TV = torch.log_softmax(z0_TV, -1), torch.log_softmax(z1_TV, -1)
    p_TV, q_TV = log_p_TV.exp(), log_q_TV.exp()
    initial_T = log_p_TV.gather(1, y_T1)[:, 0]
    gains = [torch.log_softmax(z0_TV + alpha * v_TV, -1).gather(1, y_T1)[:, 0] - initial_T for alpha in GRID]
    slopes, curvatures = [], []
    for alpha in CURVATURE_AT:
        weights_TV = torch.softmax(z0_TV + alpha * v_TV, -1)
        mean_T1 = (weights_TV * v_TV).sum(1, keepdim=True)
        slopes.append((v_TV.gather(1, y_T1) - mean_T1)[:, 0])
        curvatures.append(-(weights_TV * (v_TV - mean_T1) ** 2).sum(1))
    entropies = [-(weights * logs).sum(1) for weights, logs in ((p_TV, log_p_TV), (q_TV, log_q_TV))]
    return {
        "initial utility": initial_T,
        "gains on the grid": torch.stack(gains, 1),
        "slope": torch.stack(slopes, 1),
        "curvature": torch.stack(curvatures, 1),
        "KL(p(0)‖p(1))": (p_TV * (log_p_TV - log_q_TV)).sum(1),
        "KL(p(1)‖p(0))": (q_TV * (log_q_TV - log_p_TV)).sum(1),
        "initial entropy": entropies[0],
        "final entropy": entropies[1],
        "entropy change": entropies[1] - entropies[0],
    }


def by_name(found: Survey) -> dict[str, Tensor]:
    """A survey of single tokens under the names of `plain_geometry`."""
    both = found.distributions
    return {
        "initial utility": found.initial,
        "gains on the grid": found.gains,
        "slope": found.derivatives[1],
        "curvature": found.derivatives[2],
        "KL(p(0)‖p(1))": both.divergence,
        "KL(p(1)‖p(0))": both.reverse_divergence,
        "initial entropy": both.initial_entropy,
        "final entropy": both.final_entropy,
        "entropy change": both.entropy_change,
    }
