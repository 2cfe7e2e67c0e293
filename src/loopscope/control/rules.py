"""Exit rules of published code, one small function each, in one table.

A rule compares one number with its threshold at every loop and stops at the first loop where the comparison holds,
otherwise at the last one. Thresholds in the table are the published ones; they belong to the boundary at which the
states were taken. Rules are per position: where published code averages over positions, decoding has one position.
Formulas are those of Ouro, Huginn, LoopUS and CALM (docs/control.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from operator import ge, gt, lt
from typing import Any

from loopscope.control.policy import Array, Decision, Policy, Seen
from loopscope.errors import LoopscopeError

NAN, EVERY_LOOP = float("nan"), float("inf")


@dataclass(frozen=True)
class ThresholdRule(Policy):
    """An exit rule that compares one number with a threshold; `offline.fit` finds the threshold of a target cost.

    Attributes:
        name: what tables call it.
        threshold: what the number is compared with.
        signals: what it reads.
        number: the number, [R], from what is seen and a memory; the first signal where left out.
        earliest: no stop before this loop.
        test: the comparison: `operator.lt`, `gt` or `ge`.
        lookback: how many loops before the earliest one it must see, for what it remembers.
        late: whether it stops one loop after the comparison held.
        budget: the loop at which everything stops; None for the last loop there is.
    """

    name: str = ""
    threshold: float = 0.0
    signals: tuple[str, ...] = ()
    number: Callable[[Seen, dict[str, Any]], Array] | None = None
    earliest: int = 2
    test: Callable[[Any, Any], Any] = lt
    lookback: float = 0
    late: bool = False
    budget: int | None = None

    def value(self, seen: Seen, memory: dict[str, Any]) -> Array:
        """The number that is compared, [R]."""
        return seen.signal(self.signals[0]) if self.number is None else self.number(seen, memory)

    def decide(self, seen: Seen, memory: dict[str, Any]) -> Decision:
        """Stop where the comparison holds."""
        if seen.depth < self.earliest - self.lookback:
            return Decision()
        stop = self.test(self.value(seen, memory), self.threshold)
        if self.late:
            stop, memory["late"] = memory.get("late", False), stop
        return Decision(stop | (self.budget is not None and seen.depth >= self.budget))


def _gate_sum(seen: Seen, memory: dict[str, Any]) -> Array:
    """c_t = 1 − Π_{j≤t} (1 − λ_j), summed as p_1 + … + p_t."""
    remaining, gate = memory.get("remaining", 1.0), seen.signal("gate")
    memory["sum"] = memory.get("sum", 0.0) + gate * remaining
    memory["remaining"] = remaining * (1.0 - gate)
    return memory["sum"]


def _entropy_change(seen: Seen, memory: dict[str, Any]) -> Array:
    before, memory["entropy"] = memory.get("entropy", NAN), seen.signal("entropy")
    return abs(memory["entropy"] - before)


def _unchanged(seen: Seen, memory: dict[str, Any]) -> Array:
    """For how many loops the likeliest token has not changed."""
    now = seen.signal("top_id")
    before, memory["top_id"] = memory.get("top_id", now - 1), now
    memory["count"] = (memory.get("count", 0) + 1) * (now == before)
    return memory["count"]


def _larger_acceleration(seen: Seen, memory: dict[str, Any]) -> Array:
    """The larger of the last two; NaN where there are not two."""
    now = seen.signal("acceleration")
    before, memory["acceleration"] = memory.get("acceleration", NAN), now
    return now * (now >= before) + before * (now < before) + 0.0 * before


def _ratio(above: str, below: str) -> Callable[[Seen, Any], Array]:
    return lambda seen, _: seen.signal(above) / seen.signal(below)


RULES = {
    rule.name: rule
    for rule in (
        ThresholdRule("Ouro gate", 1.0, ("gate",), _gate_sum, 1, ge, EVERY_LOOP),
        ThresholdRule("Ouro gate, one late", 1.0, ("gate",), _gate_sum, 2, ge, EVERY_LOOP, late=True),
        ThresholdRule("KL", 5e-4, ("kl_from_previous",)),
        ThresholdRule("min-p KL", 1e-5, ("kl_min_p",)),
        ThresholdRule("entropy difference", 1e-3, ("entropy",), _entropy_change, lookback=1),
        ThresholdRule("latent difference", 0.03, ("step_norm", "state_norm"), _ratio("step_norm", "state_norm")),
        ThresholdRule("hidden difference", 1e-2, ("step_norm",)),
        ThresholdRule("cosine", 1e-3, ("state_cosine",), lambda seen, _: 1.0 - seen.signal("state_cosine")),
        ThresholdRule("argmax stability", 5, ("top_id",), _unchanged, 2, ge, EVERY_LOOP),
        ThresholdRule("acceleration", 1e-3, ("acceleration",), _larger_acceleration, 3, lookback=1),
        ThresholdRule(
            "relative acceleration", 0.03, ("acceleration", "state_norm"), _ratio("acceleration", "state_norm")
        ),
        ThresholdRule("top-1 probability", 0.9, ("top_prob",), earliest=1, test=gt),
        ThresholdRule("margin", 0.9, ("margin",), earliest=1, test=gt),
        ThresholdRule("entropy", 0.5, ("entropy",), earliest=1),
    )
}
"""Every exit rule by name."""


def exit_rule(name: str, threshold: float | None = None, **changes: Any) -> ThresholdRule:
    """A rule of the table, with another threshold, earliest loop or budget."""
    if name not in RULES:
        raise LoopscopeError(f"there is no exit rule {name!r}: choose from {', '.join(RULES)}")
    if threshold is not None:
        changes["threshold"] = threshold
    return dataclasses.replace(RULES[name], **changes)
