"""The FP64 path at 257 even nodes through the third derivative (level `full` of a pass), against node by node.

Shapes: T reference tokens, D hidden width, V vocabulary entries, K nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.bench.row import Reference, Row, Setting, at_least, at_most
from loopscope.bench.sizes import Update, random_update, with_likely_targets
from loopscope.readout import AffinePath, affine_path_from_states

NODE_BY_NODE = "node by node"
PRODUCTS = "the two FP64 products alone"


def rows(setting: Setting) -> list[Row]:
    """Derivatives through the third at all nodes with their references; the envelope between the nodes beside them."""
    sizes = setting.sizes
    update = with_likely_targets(
        random_update(sizes.fp64_tokens, sizes.hidden, sizes.vocabulary, setting.device, seed=2)
    )
    nodes = [k / sizes.cells for k in range(sizes.cells + 1)]
    plain = NodeByNode(update)
    raced = setting.clock.race(
        {
            "ours": lambda: _path(update).derivatives(nodes, 3),
            "envelope": lambda: _path(update).envelope(sizes.cells),
            "products": plain.products,
        },
        sizes.slow_repeats,
    )
    slow = setting.clock.race({NODE_BY_NODE: lambda: plain.derivatives(nodes)}, sizes.slow_repeats, warm_ups=0)
    references = (Reference(PRODUCTS, raced["products"], floor=True), Reference(NODE_BY_NODE, slow[NODE_BY_NODE]))
    text = "at least 40 times faster than node by node"
    size = update.size | {"nodes": len(nodes)}
    goal = at_least(text, 40.0, references[1].ratio(raced["ours"]), judged=sizes.judged, against=NODE_BY_NODE)
    text = "at most 1.6 times the two FP64 products"
    floor = at_most(text, 1.6, references[0].ratio(raced["ours"]), judged=sizes.judged, against=PRODUCTS)
    # Goals for the GPU; on a CPU the products weigh too much for them.
    goals = (goal, floor) if setting.on_gpu or not sizes.judged else ()
    what = f"φ, φ', φ'' and φ''' in FP64 at {len(nodes)} even scales under an affine head"
    bounds = f"bounds of −φ'' and |φ'''| on {sizes.cells} cells, from derivatives through the fourth"
    return [
        Row("fp64", what, size, "s", raced["ours"], references, goals, _differences(update, nodes, plain)),
        Row("fp64:envelope", f"The same with {bounds}", size, "s", raced["envelope"], references),
    ]


def _path(update: Update) -> AffinePath:
    path = affine_path_from_states(
        update.h_TD, update.h_plus_TD, update.weight_VD, None, update.targets_T, dtype=torch.float64
    )
    return path.per_token()


class NodeByNode:
    """Logits once, then a softmax and its moments at every node: the closed form, written down plainly."""

    def __init__(self, update: Update) -> None:
        self._h_TD, self._h_plus_TD = update.h_TD.double(), update.h_plus_TD.double()
        self._weight_DV = update.weight_VD.double().T
        self._y_T1 = update.targets_T.unsqueeze(1)

    def products(self) -> tuple[Tensor, Tensor]:
        """H Wᵀ and (H⁺ − H) Wᵀ."""
        return self._h_TD @ self._weight_DV, (self._h_plus_TD - self._h_TD) @ self._weight_DV

    def derivatives(self, nodes: list[float]) -> Tensor:
        """φ … φ''' of each token, [4, T, K]."""
        z0_TV, v_TV = self.products()
        v_y_T1 = v_TV.gather(1, self._y_T1)
        start_T1 = torch.log_softmax(z0_TV, -1).gather(1, self._y_T1)
        found = []
        for alpha in nodes:
            log_p_TV = torch.log_softmax(torch.add(z0_TV, v_TV, alpha=alpha), -1)
            gain_T = (log_p_TV.gather(1, self._y_T1) - start_T1)[:, 0]
            p_TV = log_p_TV.exp_()
            mean_T1 = (p_TV * v_TV).sum(1, keepdim=True)
            c_TV = v_TV - mean_T1
            term_TV = p_TV * c_TV * c_TV
            found.append(torch.stack([gain_T, (v_y_T1 - mean_T1)[:, 0], -term_TV.sum(1), -(term_TV * c_TV).sum(1)]))
        return torch.stack(found, -1)


def _differences(update: Update, nodes: list[float], plain: NodeByNode) -> dict[str, float]:
    """The largest difference to node by node, each derivative's over its own largest value."""
    ours, theirs = _path(update).derivatives(nodes, 3).stack, plain.derivatives(nodes)
    relative = (ours - theirs).abs().amax((1, 2)) / theirs.abs().amax((1, 2))
    names = ("gain", "first", "second", "third")
    return {f"largest_difference_{name}": float(value) for name, value in zip(names, relative, strict=True)}
