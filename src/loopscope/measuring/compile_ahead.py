"""The kernels that a pass will ask for, compiled in threads while the host reads and encodes its questions.

Those of a step and of the norms first, then those of an affine head, which take seconds each: batches go through their
loops meanwhile (`Worker`). What they compute here is never looked at; torch's own operations run, so that what comes
with their first call is over, too.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from loopscope.errors import LoopscopeError
from loopscope.kernels.language import compile_only
from loopscope.measuring.reading import readout_of
from loopscope.measuring.settings import Settings
from loopscope.measuring.update import Scales, squared_norms
from loopscope.models.base import LoopedModule
from loopscope.models.layers.varlen import runs_unpadded
from loopscope.models.load import card_of
from loopscope.models.packing import Group, pack
from loopscope.models.protocol import AffineHead, LoopedModel
from loopscope.models.walk import Walk
from loopscope.path.grids import PATH_NODES
from loopscope.readout.affine.make import affine_path, affine_path_from_states
from loopscope.store.column_types import Level

_TOKENS = 2
_LONGER = 512
"""Tokens of a step: about as many as let products run as they do in a pass."""


@torch.no_grad()
def compile_ahead(model: LoopedModel, settings: Settings) -> None:
    """Begins to compile; without a GPU there is nothing to do."""
    if model.device.type != "cuda":
        return
    with compile_only():
        if isinstance(model, LoopedModule) and not card_of(model).is_own:
            _compile_step(model, settings)
        head = model.head if settings.readout_dtype == "float32" else None
        if head is not None:
            _compile_readout(head, settings, readout_of(model, torch.float32).most_together(settings))


def _compile_readout(head: AffineHead, settings: Settings, most_together: int) -> None:
    from loopscope.readout.affine.fused.path import ENDS, fused_path
    from loopscope.readout.affine.in_a_row import surveys

    weight_VD = head.weight_VD.view_as(head.weight_VD)  # a tensor of its own: what is found of it here is not kept
    h_TD = torch.zeros(_TOKENS, weight_VD.shape[1], dtype=weight_VD.dtype, device=weight_VD.device)
    targets_T = torch.zeros(_TOKENS, dtype=torch.int64, device=weight_VD.device)
    path = fused_path(h_TD, h_TD, weight_VD, head.bias_V, targets_T, check=False)
    if path is None:
        return
    if settings.transitions:
        scales = Scales.of(settings.level, tokens=settings.tokens)
        one = affine_path_from_states(
            h_TD,
            h_TD,
            weight_VD,
            head.bias_V,
            targets_T,
            dtype=torch.float32,
            check=False,
            every_scale=settings.sums_every_scale,
        )
        for together in {len(run) for run in settings.runs(most_together)}:
            surveys([one.per_token()] * together, scales.points, scales.with_derivatives, 2)
    if settings.level is not Level.QUICK:
        path.own(torch.zeros(_TOKENS, dtype=torch.float64, device=weight_VD.device), _never)
    path.survey(ENDS, 0)
    if settings.level is Level.FULL:
        z_TV = torch.zeros(_TOKENS, weight_VD.shape[0], dtype=torch.float64, device=weight_VD.device)
        stored = affine_path(z_TV, z_TV, targets_T)
        with suppress(LoopscopeError):  # results that nobody computed need not be finite
            stored.at([0.5], 1)
        with suppress(LoopscopeError):
            stored.envelope(PATH_NODES - 1)


def _compile_step(model: LoopedModule, settings: Settings) -> None:
    tokens = min(_LONGER, model.max_positions or _LONGER)
    unpadded = settings.batch.padding == "none" and runs_unpadded(model)
    options = Group([[0] * tokens] * 2, tokens - 1) if settings.share_context else Group([[0] * tokens])
    packing = pack([options], unpadded=unpadded)
    walk = Walk.of(model, packing.batch.to(model.device), 1)
    state = walk.state
    packing.to(model.device).separate(walk.to(1).state)
    if settings.transitions and settings.level is not Level.QUICK:
        squared_norms(state, walk.state)


def _never(*_: object) -> Any:
    raise AssertionError("nothing is looked at, so nothing is computed again")
