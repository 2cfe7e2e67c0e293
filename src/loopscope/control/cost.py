"""What a policy costs: cost = (F₀ + loops · F_r + checks · F_check) / F_r per token.

F is the number of weights that one token passes through: F_r those of one loop, F_check those of a readout (what stands
between the state and the logits), F₀ everything outside the loop, the readout of the answer included. A check is a
readout of the logits that a policy asked for, at each depth once. A scaled step has both its ends computed, so it costs
its whole loop; a step that calls the block several times costs as many loops.

`model_cost` counts a model at hand; those that the paper measures are known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Costs:
    """Weights outside the loop and of one readout, over those of one loop.

    >>> Costs(outside=0.08, check=0.08)(loops=3, checks=2)
    3.24
    """

    outside: float = 0.0
    check: float = 0.0

    def __call__(self, loops: Any, checks: Any = 0) -> Any:
        """The cost of a token, in loops."""
        return self.outside + loops + checks * self.check


KNOWN = {
    "ouro-1.4b": Costs(0.082, 0.082),
    "ouro-2.6b": Costs(0.041, 0.041),
    "huginn-0125": Costs(1.18, 0.69),
}
"""By name without organisation and revision, in lower case; Huginn's readout is its coda and head."""


def known_costs(model: str) -> Costs | None:
    """The costs of a published model, by whatever name it was measured under.

    >>> known_costs("ByteDance/Ouro-1.4B-Thinking")
    Costs(outside=0.082, check=0.082)
    """
    bare = model.rsplit("/", 1)[-1].partition("@")[0].lower().removesuffix("-thinking")
    return KNOWN.get(bare)
