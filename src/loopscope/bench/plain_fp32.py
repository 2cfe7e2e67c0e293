"""The geometry of an update in plain FP32, as one would write it down first: the yardstick of accuracy.

Two FP32 products, then softmax, log-softmax and moments in FP32 with no more care than torch takes itself.

Shapes: T reference tokens, D hidden width, V vocabulary entries, K scales of the grid, M scales with derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loopscope.bench.updates import Update
from loopscope.readout.affine.sources import full_precision_products


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
