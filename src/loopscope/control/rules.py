"""Exit rules that published code or formulas pin down, with their published defaults.

All stop at the first loop that satisfies the test, else at the last one. A threshold belongs to the boundary at which
the states were taken. Rules are per position: what published code averages over positions is one position in decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from loopscope.control.policy import Array, Decision, Seen, ThresholdRule


@dataclass(frozen=True)
class FixedDepth:
    """Stop at loop k."""

    depth: int
    signals: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"fixed {self.depth}"

    @property
    def earliest(self) -> int:
        """The depth itself."""
        return self.depth

    def start(self, rows: int) -> None:
        """Nothing to remember."""

    def decide(self, seen: Seen, memory: None) -> Decision:
        """Stop every position once the depth is reached."""
        return Decision(stop=seen.depth >= self.depth)


@dataclass(frozen=True)
class OuroGate(ThresholdRule):
    """c_t = 1 − Π_{j≤t} (1 − λ_j) ≥ q; the last loop of the gate's budget takes what is left.

    Attributes:
        budget: the loop at which everything stops; None for the last loop there is.
    """

    threshold: float = 1.0
    earliest: int = 1
    name: str = "Ouro gate"
    budget: int | None = None
    signals = ("gate",)
    above = True

    def value(self, seen: Seen, memory: Any) -> Array:
        """c_t, summed as p_1 + … + p_t."""
        remaining = memory.get("remaining", 1.0)
        gate = seen.signal("gate")
        memory["cdf"] = memory.get("cdf", 0.0) + gate * remaining
        memory["remaining"] = remaining * (1.0 - gate)
        return memory["cdf"]

    def decide(self, seen: Seen, memory: Any) -> Decision:
        """Stop where the sum has reached the threshold."""
        reached = self.value(seen, memory) >= self.threshold
        return Decision(stop=reached | (self.budget is not None and seen.depth >= self.budget))


@dataclass(frozen=True)
class OuroGateLate(OuroGate):
    """The same sum, and the exit one loop after it has reached the threshold."""

    name: str = "Ouro gate, one late"
    earliest: int = 2

    def decide(self, seen: Seen, memory: Any) -> Decision:
        """Stop where the sum had reached the threshold after the loop before."""
        fired = memory.get("fired", False)
        decision = OuroGate.decide(self, seen, memory)
        memory["fired"] = memory["cdf"] >= self.threshold
        return Decision(stop=fired | (decision.stop & (seen.depth == self.budget)))


@dataclass(frozen=True)
class KL(ThresholdRule):
    """KL(p_{t−1} ‖ p_t) < τ (Huginn)."""

    threshold: float = 5e-4
    name: str = "KL"
    signals = ("kl_from_previous",)

    def value(self, seen: Seen, memory: Any) -> Array:
        """KL(p_{t−1} ‖ p_t)."""
        return seen.signal("kl_from_previous")


@dataclass(frozen=True)
class MinPKL(ThresholdRule):
    """The divergence after small probabilities are set to 1/V (Huginn's code)."""

    threshold: float = 1e-5
    name: str = "min-p KL"
    signals = ("kl_min_p",)

    def value(self, seen: Seen, memory: Any) -> Array:
        """KL(p̃_{t−1} ‖ p̃_t)."""
        return seen.signal("kl_min_p")


@dataclass(frozen=True)
class EntropyDifference(ThresholdRule):
    """|S_t − S_{t−1}| < τ of the entropies (Huginn's code)."""

    threshold: float = 1e-3
    name: str = "entropy difference"
    signals = ("entropy",)
    lookback = 1

    def value(self, seen: Seen, memory: Any) -> Array:
        """The absolute difference; NaN after the first entropy."""
        now = seen.signal("entropy")
        before = memory.get("entropy", float("nan"))
        memory["entropy"] = now
        return abs(now - before)


@dataclass(frozen=True)
class LatentDifference(ThresholdRule):
    """‖D_t‖ / ‖H_t‖ < τ (Huginn's code)."""

    threshold: float = 0.03
    name: str = "latent difference"
    signals = ("step_norm", "state_norm")

    def value(self, seen: Seen, memory: Any) -> Array:
        """‖D_t‖ / ‖H_t‖."""
        return seen.signal("step_norm") / seen.signal("state_norm")


@dataclass(frozen=True)
class HiddenDifference(ThresholdRule):
    """‖D_t‖ < ε, absolute (Ouro, LoopUS)."""

    threshold: float = 1e-2
    name: str = "hidden difference"
    signals = ("step_norm",)

    def value(self, seen: Seen, memory: Any) -> Array:
        """‖D_t‖."""
        return seen.signal("step_norm")


@dataclass(frozen=True)
class Cosine(ThresholdRule):
    """1 − cos(H_t, H_{t−1}) < τ (Huginn's code)."""

    threshold: float = 1e-3
    name: str = "cosine"
    signals = ("state_cosine",)

    def value(self, seen: Seen, memory: Any) -> Array:
        """1 − cos(H_t, H_{t−1})."""
        return 1.0 - seen.signal("state_cosine")


@dataclass(frozen=True)
class ArgmaxStability(ThresholdRule):
    """The likeliest token is unchanged for n loops (Huginn's code); the threshold is n."""

    threshold: float = 5
    name: str = "argmax stability"
    signals = ("top_id",)
    above = True
    lookback = 1

    def decide(self, seen: Seen, memory: Any) -> Decision:
        """Stop where the count has reached n."""
        return Decision(stop=self.value(seen, memory) >= self.threshold)

    def value(self, seen: Seen, memory: Any) -> Array:
        """For how many loops the likeliest token has not changed."""
        now = seen.signal("top_id")
        before, count = memory.get("top_id", now - 1), memory.get("count", 0)
        memory["top_id"] = now
        memory["count"] = (count + 1) * (now == before)
        return memory["count"]


@dataclass(frozen=True)
class Acceleration(ThresholdRule):
    """‖D_t − D_{t−1}‖ < τ on two loops running."""

    threshold: float = 1e-3
    earliest: int = 3
    name: str = "acceleration"
    signals = ("acceleration",)

    def value(self, seen: Seen, memory: Any) -> Array:
        """The larger of the last two, NaN where there are not two."""
        now = seen.signal("acceleration")
        before = memory.get("acceleration", float("nan"))
        memory["acceleration"] = now
        return now * (now >= before) + before * (now < before) + 0.0 * before

    lookback = 1


@dataclass(frozen=True)
class RelativeAcceleration(ThresholdRule):
    """‖D_t − D_{t−1}‖ / ‖H_t‖ < τ (the sampler of Huginn's code)."""

    threshold: float = 0.03
    name: str = "relative acceleration"
    signals = ("acceleration", "state_norm")

    def value(self, seen: Seen, memory: Any) -> Array:
        """‖D_t − D_{t−1}‖ / ‖H_t‖."""
        return seen.signal("acceleration") / seen.signal("state_norm")


@dataclass(frozen=True)
class TopProbability(ThresholdRule):
    """p(1) > τ (CALM)."""

    threshold: float = 0.9
    earliest: int = 1
    name: str = "top-1 probability"
    signals = ("top_prob",)
    above = True

    def value(self, seen: Seen, memory: Any) -> Array:
        """p(1)."""
        return seen.signal("top_prob")


@dataclass(frozen=True)
class Margin(ThresholdRule):
    """p(1) − p(2) > τ (CALM)."""

    threshold: float = 0.9
    earliest: int = 1
    name: str = "margin"
    signals = ("margin",)
    above = True

    def value(self, seen: Seen, memory: Any) -> Array:
        """p(1) − p(2)."""
        return seen.signal("margin")


@dataclass(frozen=True)
class Entropy(ThresholdRule):
    """S(p_t) < τ."""

    threshold: float = 0.5
    earliest: int = 1
    name: str = "entropy"
    signals = ("entropy",)

    def value(self, seen: Seen, memory: Any) -> Array:
        """The entropy."""
        return seen.signal("entropy")


RULES: tuple[type[ThresholdRule], ...] = (
    OuroGate,
    OuroGateLate,
    KL,
    MinPKL,
    EntropyDifference,
    LatentDifference,
    HiddenDifference,
    Cosine,
    ArgmaxStability,
    Acceleration,
    RelativeAcceleration,
    TopProbability,
    Margin,
    Entropy,
)
"""Every exit rule with a threshold."""
