"""The kernels that a pass will ask for, compiled in threads while the host reads and encodes its questions.

Only those of an affine head, which take seconds each; the layers' take a tenth of one. What they compute meanwhile is
never looked at.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from loopscope.errors import LoopscopeError
from loopscope.kernels.language import compile_only
from loopscope.measuring.settings import Settings
from loopscope.measuring.update import Scales
from loopscope.models.protocol import LoopedModel
from loopscope.path.grids import PATH_NODES
from loopscope.readout.affine.even import EvenScales
from loopscope.readout.affine.make import affine_path
from loopscope.store.column_types import Level

_TOKENS = 2


@torch.no_grad()
def compile_ahead(model: LoopedModel, settings: Settings) -> None:
    """Begins to compile; without a GPU or an affine head there is nothing to do."""
    head = model.head
    if head is None or model.device.type != "cuda" or settings.readout_dtype != "float32":
        return
    from loopscope.readout.affine.fused.logits import growth_of
    from loopscope.readout.affine.fused.path import ENDS, fused_path

    weight_VD = head.weight_VD
    h_TD = torch.zeros(_TOKENS, weight_VD.shape[1], dtype=weight_VD.dtype, device=weight_VD.device)
    targets_T = torch.zeros(_TOKENS, dtype=torch.int64, device=weight_VD.device)
    path = fused_path(h_TD, h_TD, weight_VD, head.bias_V, targets_T, check=False)
    if path is None:
        return
    growth_of(weight_VD)  # is kept, so it must not come from a kernel that does not run
    with compile_only():
        if settings.transitions:
            scales = Scales.of(settings.level, tokens=settings.tokens)
            path.survey(EvenScales.of(scales.points, scales.with_derivatives), 2, _never, spread=False)
        if settings.level is not Level.QUICK:
            path.own(torch.zeros(_TOKENS, dtype=torch.float64, device=weight_VD.device), _never)
        path.survey(ENDS, 0, _never, spread=False)
        if settings.level is Level.FULL:
            z_TV = torch.zeros(_TOKENS, weight_VD.shape[0], dtype=torch.float64, device=weight_VD.device)
            stored = affine_path(z_TV, z_TV, targets_T)
            with suppress(LoopscopeError):  # results that nobody computed need not be finite
                stored.at([0.5], 1)
            with suppress(LoopscopeError):
                stored.envelope(PATH_NODES - 1)


def _never(*_: object) -> Any:
    raise AssertionError("nothing is looked at, so nothing is computed again")
