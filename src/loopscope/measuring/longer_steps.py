"""Steps longer than the proposed one (`--scales-to S`): φ'(1), φ on [0, S], and the quadratic scale there.

The scales are 0, 0.05, …, S, those of the grid and as dense beyond it. φ'(1) > 0 says that the step was too short:
going on in its direction would have gained more, at first. Where φ is concave (a reference solution under an affine
head) that is the same as a best scale beyond 1, to the spacing of the grid.

The fused kernels of the readout know [0, 1]; beyond it scales are read in float64 (`moments`), on a GPU as well.

Shapes: B questions.
"""

from __future__ import annotations

from torch import Tensor

from loopscope.measuring.transfer import Columns
from loopscope.measuring.update import UpdatePaths, predicted_scale
from loopscope.path import scales_up_to


def longer_step_columns(paths: UpdatePaths, end: float, *, is_affine: bool) -> Columns:
    """The columns of `longer_steps` of every question of a batch."""
    path, scales = paths.questions, scales_up_to(end)
    # The slope first: what is evaluated with derivatives is not evaluated again without.
    _, end_slope = path.at_scales([1.0], 1)[..., 0]
    _, slope, curvature = path.at_scales([0.0], 2)[..., 0]
    gains_BK = path.at_scales(scales.tolist(), 0)[0]
    scale = _predicted(slope, 0.5 * curvature, end)
    # With a slope that is not stored: the kernels of an affine head that answer values alone know [0, 1] only.
    quadratic_gain = path.at_own(scale, 1 if is_affine else 0)[0]
    return {
        "end_slope": end_slope,
        "gains": gains_BK,
        "quadratic_scale": scale,
        "quadratic_gain": quadratic_gain,
    }


def _predicted(slope: Tensor, quadratic: Tensor, end: float) -> Tensor:
    """Min argmax of Aα + Qα² over [0, S]: with α = Sβ that of SAβ + S²Qβ² over [0, 1]."""
    return end * predicted_scale(end * slope, end * end * quadratic)
