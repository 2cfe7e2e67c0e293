"""The exact endpoint decomposition ΔU = A − C, output divergence and entropy change (Prop. linear-endpoint).

With p = p(0) and q = p(1), C = KL(p‖q). It does not use the slope A, which makes ΔU − (A − C) a check. How one part of
the vocabulary is compared without losing digits is in `endpoint_parts`, and how fast in `endpoint_block`.

Vocabulary blocks are put together by the chain rule: with P_b and Q_b the blocks' masses,
KL(p‖q) = KL(P‖Q) + Σ P_b KL(p_b‖q_b), where KL(P‖Q) is the same computation on the blocks' own log masses.

Shapes: t tokens, b vocabulary entries, B blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.readout.endpoint_block import compare_block
from loopscope.readout.endpoint_parts import EndpointDistributions, compare, entropy_change
from loopscope.readout.sources import LogitSource, blocks

__all__ = ["EndpointDecomposition", "EndpointDistributions", "EndpointSweep", "endpoint_distributions"]


@dataclass(frozen=True)
class EndpointDecomposition:
    """ΔU = A − C, its parts computed independently, averaged over reference tokens.

    Attributes:
        gain: ΔU = φ(1).
        slope: A = φ'(0).
        divergence: C, the mean of KL(p(0)‖p(1)).
        residual: ΔU − (A − C), zero but for rounding.
    """

    gain: Tensor
    slope: Tensor
    divergence: Tensor
    residual: Tensor


def endpoint_distributions(
    source: LogitSource, rows: slice, targets_t: Tensor, block_vocabulary: int
) -> EndpointDistributions:
    """Divergences and entropies of some tokens, in one sweep over the vocabulary."""
    target = source.target_logits(rows, targets_t)
    ends = EndpointSweep()
    for columns in blocks(source.vocabulary, block_vocabulary):
        ends.add(*source.block(rows, columns, targets_t, target))
    return ends.result()


class EndpointSweep:
    """The comparison of some tokens' endpoint distributions, a vocabulary block at a time."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def add(self, z0_tb: Tensor, v_tb: Tensor) -> None:
        """Takes in one block."""
        self._parts.append(compare_block(z0_tb, v_tb))

    def result(self) -> EndpointDistributions:
        """The blocks so far, put together by the chain rule."""
        if len(self._parts) == 1:
            return EndpointDistributions(*self._parts[0][:5])
        kl, reverse, h0, h1, change, scale, *outside = torch.stack(self._parts, -1)
        between, p_tB, q_tB = compare(*outside)
        initial_entropy = between.within.initial_entropy + (p_tB * h0).sum(1)
        final_entropy = between.within.final_entropy + (q_tB * h1).sum(1)
        moved = between.moved + (q_tB * change).sum(1)
        moved_scale = between.moved_scale + (q_tB * scale).sum(1)
        return EndpointDistributions(
            between.within.divergence + (p_tB * kl).sum(1),
            between.within.reverse_divergence + (q_tB * reverse).sum(1),
            initial_entropy,
            final_entropy,
            entropy_change(initial_entropy, final_entropy, moved, moved_scale)[0],
        )
