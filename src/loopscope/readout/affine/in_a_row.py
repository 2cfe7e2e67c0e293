"""Surveys of updates that follow one another: where the fused kernels take them, every state's logits once.

Shapes: T tokens, D hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from loopscope.readout.affine.even import EvenScales, Survey
from loopscope.readout.affine.fused.chained import LEAST_STATES, fused_surveys
from loopscope.readout.affine.path import AffinePath


def surveys(paths: Sequence[AffinePath], count: int, moments_at: Sequence[float], order: int) -> list[Survey]:
    """`AffinePath.survey` of each path; every path starts in the states in which the one before it ends."""
    even = EvenScales.of(count, moments_at)
    fused = [each for each in (path.in_kernels(even) for path in paths) if each is not None]
    heads = [each.head for each in fused]
    shared = all(one.h_plus_TD.data_ptr() == other.h_TD.data_ptr() for one, other in pairwise(heads))
    if len(fused) < len(paths) or len(paths) + 1 < LEAST_STATES or not shared:  # states that had to be copied are not
        return [path.survey(count, moments_at, order) for path in paths]
    states = [heads[0].h_TD, *(head.h_plus_TD for head in heads)]
    found = fused_surveys(
        states,
        heads[0].weight_VD,
        heads[0].bias_V,
        fused[0].targets_T,
        even,
        order,
        every_scale=fused[0].every_scale,
    )
    return [path.told(even, order, tokens) for path, tokens in zip(paths, found, strict=True)]
