"""Errors against an FP64 reference, quantity by quantity, beside those of the plain FP32 implementation.

The reference takes the same stored BF16 states and head in FP64 through `impl="reference"`. An implementation passes
where neither its root-mean-square error nor its largest is above the plain one's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.bench.errors import error_of
from loopscope.bench.geometry import CURVATURE_AT, SCALES, survey
from loopscope.bench.measured import Measured
from loopscope.bench.plain_fp32 import plain_geometry
from loopscope.bench.row import Row, at_most
from loopscope.bench.setting import Setting
from loopscope.bench.updates import FLAT, PEAKED, SMALL_STEP, STEP, TYPICAL, Update, random_update, with_likely_targets
from loopscope.readout import Survey, affine_path_from_states


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
    """One row a case."""
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
    )
    return path.per_token().survey(SCALES, CURVATURE_AT, order=2)
