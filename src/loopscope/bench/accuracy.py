"""Errors of an update's geometry against FP64, quantity by quantity, beside those of a plain FP32 implementation.

The FP64 reference takes the same stored BF16 states and head through `impl="reference"`. The plain implementation is
what one would write down first: two FP32 products, then softmax, log-softmax and moments with no more care than torch
takes itself. An implementation passes where neither its RMS error nor its largest is above the plain one's.

Shapes: T reference tokens, D hidden width, V vocabulary entries, K scales of the grid, M scales with derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.bench.affine_geometry import CURVATURE_AT, SCALES, survey
from loopscope.bench.clock import Measured, error_of
from loopscope.bench.row import Row, Setting, at_most
from loopscope.bench.sizes import FLAT, PEAKED, SMALL_STEP, STEP, TYPICAL, Update, random_update, with_likely_targets
from loopscope.readout import Survey, affine_path_from_states
from loopscope.readout.affine.sources import full_precision_products

_ROWS = 128  # tokens that the reference takes at a time on a GPU, which would wait for launches otherwise


class Case(NamedTuple):
    """One kind of update."""

    name: str
    words: str
    spread: float
    step: float


CASES = (
    Case("flat", "flat softmaxes", FLAT, STEP),
    Case("typical", "softmaxes of a few likely entries", TYPICAL, STEP),
    Case("peaked", "softmaxes of one likely entry", PEAKED, STEP),
    Case("small", "a displacement of a hundredth of the state", TYPICAL, SMALL_STEP),
)


def rows(setting: Setting) -> list[Row]:
    """One row per case."""
    return [_row(case, setting) for case in CASES]


def _row(case: Case, setting: Setting) -> Row:
    sizes = setting.sizes
    update = with_likely_targets(
        random_update(
            sizes.error_tokens,
            sizes.hidden,
            sizes.error_vocabulary,
            setting.device,
            spread=case.spread,
            step=case.step,
            seed=1,
        )
    )
    exact, ours = by_name(_reference(update)), by_name(survey(update))
    plain = plain_geometry(update, [k / (SCALES - 1) for k in range(SCALES)], CURVATURE_AT)
    errors = tuple(error_of(name, exact[name], ours[name], plain[name]) for name in exact)
    worst = max(error.rms_ratio for error in errors)
    largest = max(error.max_ratio for error in errors)
    return Row(
        f"accuracy:{case.name}",
        f"RMS error against FP64 over that of plain FP32, of the worst quantity; {case.words}",
        update.size,
        "",
        Measured.of([worst]),
        goals=(
            at_most("no quantity's RMS error above plain FP32's", 1.0, worst, judged=sizes.judged),
            at_most("no quantity's largest error above plain FP32's", 1.0, largest, judged=sizes.judged),
        ),
        figures={
            "mean_initial_entropy": float(exact["initial entropy"].mean()),
            "quantities_less_accurate_beyond_chance": float(sum(error.low > 1.0 for error in errors)),
        },
        errors=errors,
    )


def plain_geometry(update: Update, scales: Sequence[float], moments_at: Sequence[float]) -> dict[str, Tensor]:
    """Every quantity of a survey by name, FP32."""
    y_T1 = update.targets_T.unsqueeze(1)
    weight_DV = update.weight_VD.float().T
    with full_precision_products():
        z0_TV, z1_TV = update.h_TD.float() @ weight_DV, update.h_plus_TD.float() @ weight_DV
    v_TV = z1_TV - z0_TV
    log_p_TV, log_q_TV = torch.log_softmax(z0_TV, -1), torch.log_softmax(z1_TV, -1)
    p_TV, q_TV = log_p_TV.exp(), log_q_TV.exp()
    initial_T = log_p_TV.gather(1, y_T1)[:, 0]
    gains = [torch.log_softmax(z0_TV + a * v_TV, -1).gather(1, y_T1)[:, 0] - initial_T for a in scales]
    slopes, curvatures = [], []
    for alpha in moments_at:
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


def _reference(update: Update) -> Survey:
    path = affine_path_from_states(
        update.h_TD.double(),
        update.h_plus_TD.double(),
        update.weight_VD.double(),
        None,
        update.targets_T,
        dtype=torch.float64,
        impl="reference",
        block_tokens=_ROWS if update.h_TD.is_cuda else None,
    )
    return path.per_token().survey(SCALES, CURVATURE_AT, order=2)
