"""Policies: they decide after every loop, for many positions at once, without the reference.

After loop t a position may stop; the step that was just taken may get another length, H_{t−1} + scale · D_t with
D_t = H_t − H_{t−1}; and where it stops, the logits may be read beyond (or before) the last state, z_t + omega · u.
Omega changes no state: later loops and later tokens see what they would have seen.

A policy of your own says what it reads and when it stops; everything else has a default:

    class Settled(Policy):
        name, earliest = "settled", 2
        def decide(self, seen, memory):
            return Decision(stop=seen.signal("entropy") * seen.signal("step_norm") < 0.5)

Arrays are torch tensors while a model runs and NumPy arrays over a recorded trace. A policy that uses only operators
(`+ − * / < & | ~`, `abs`) and `seen.signal` works on both. NaN stands for a signal that does not exist yet (a change of
the logits after the first loop); a comparison with NaN is false, so no rule stops on one.

A rule compares one number with its threshold at every loop and stops at the first loop where the comparison holds,
otherwise at the last one. Thresholds in the table are the published ones; they belong to the boundary at which the
states were taken. Rules are per position: where published code averages over positions, decoding has one position.
Formulas are those of Ouro, Huginn, LoopUS and CALM (docs/control.md).

A scale is of the step, which moves the states, or of the readout, which does not.

    FixedDepth(R)             stop at loop R
    FixedScale(α, t)          H_t ← H_{t−1} + α · D_t at loop t, at every later one too, or stop there
    Taps                      α = ‖mean of D‖² / mean of ‖D‖², moving means over loops: progress over fluctuation
    ScaledReadout(R, k, ω)    stop at R and read z_R + ω (z_R − z_k): the update k → R of the paper at α = 1 + ω
    MarginScaled(R, k, cap)   the same with ω = cap · (1 − margin), the margin being p(1) − p(2) at R (LoopCD)

A scaled readout costs its loops and one readout for z_k, in every comparison here; where the head is affine the states
can be combined before a single readout, and a fixed ω then costs nothing. The directions "orthogonal" and "temperature"
are its controls: what the change adds beyond a rescaling of the logits, and what the rescaling alone gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from operator import ge, gt, lt
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from loopscope.errors import LoopscopeError, shown, user_code

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = Any
"""A torch tensor or a NumPy array, one entry per position."""
Direction: TypeAlias = Literal["chord", "orthogonal", "temperature"]
"""u: z_t − z_k; its component orthogonal to z_t; or z_t itself, which is a temperature of 1 / (1 + omega)."""

STATE_SIGNALS = ("state_norm", "step_norm", "state_cosine", "acceleration", "step_cosine")
"""Read from states alone: free."""
LOGIT_SIGNALS = ("top_id", "top_prob", "margin", "entropy")
"""Read from the logits after this loop: one check."""
CHANGE_SIGNALS = ("kl_from_previous", "kl_to_previous", "kl_min_p", "mean_v", "var_v")
"""Read from the logits after this loop and the one before: a check at each, unless it was made already."""
SIGNALS = (*STATE_SIGNALS, "gate", *LOGIT_SIGNALS, *CHANGE_SIGNALS)
"""Every signal by the name of its column in the table `trace`; `loopscope.control.act` has the formulas."""


@dataclass(frozen=True)
class Seen:
    """What a policy has access to after a loop.

    Attributes:
        depth: t, the loops done.
        states: H_t, H_{t−1}, H_{t−2}, as many as there are, [R, D] each; empty over a trace, which holds no states.
        signal: a named signal, [R]; logits are computed, and charged, when a signal that needs them is first read.
    """

    depth: int
    states: tuple[Tensor, ...]
    signal: Callable[[str], Array]


@dataclass(frozen=True)
class Decision:
    """What a policy decides for R positions; each number is [R], or one for all.

    Attributes:
        stop: which positions stop here.
        scale: the state becomes H_{t−1} + scale · D_t.
        omega: where a position stops, the logits z_t + omega · u are read.
    """

    stop: Array | bool = False
    scale: Array | float = 1.0
    omega: Array | float = 0.0


class Policy:
    """When to stop, how far to step, and where to read.

    Attributes:
        name: what tables call it.
        earliest: no position stops before this loop, whatever `decide` returns.
        signals: what it reads beyond `decide`'s own calls: "states" where it needs states, "gate" for the exit gate.
        direction: u of `Decision.omega`.
        reference: k of the directions that need z_k.
    """

    name: str = "policy"
    earliest: int = 1
    signals: tuple[str, ...] = ()
    direction: Direction = "chord"
    reference: int | None = None

    def decide(self, seen: Seen, memory: dict[str, Any]) -> Decision:
        """The decision after a loop; called after every loop from the first.

        `memory` is the policy's own for these positions: empty at the first loop, and whatever it puts there.
        """
        raise NotImplementedError


def decision_of(policy: Policy, seen: Seen, memory: dict[str, Any], rows: int) -> Decision:
    """A policy's decision about some positions.

    Raises:
        LoopscopeError: the user's policy failed, or returned something else.
    """
    if type(policy).__module__.startswith("loopscope."):
        return policy.decide(seen, memory)
    call = f"decide of the policy {policy.name!r} after loop {seen.depth}"
    with user_code(call, always=True):
        decision = policy.decide(seen, memory)
    if not isinstance(decision, Decision):
        raise LoopscopeError(f"{call} returned {shown(decision)}: return a Decision")
    for name, given in vars(decision).items():
        found = given if hasattr(given, "dtype") else np.asarray(given)
        kinds = ("bool",) if name == "stop" else ("bool", "int", "uint", "float", "bfloat")
        if not str(found.dtype).removeprefix("torch.").startswith(kinds) or tuple(found.shape) not in ((), (rows,)):
            kind = "True or False" if name == "stop" else "a number"
            raise LoopscopeError(f"{call} returned {name}={shown(given)}: give {kind} for all or for each of {rows}")
    return decision


@dataclass(frozen=True)
class ThresholdRule(Policy):
    """An exit rule that compares one number with a threshold; `offline.fit` finds the threshold of a target cost.

    Attributes:
        name: what tables call it.
        threshold: what the number is compared with.
        signals: what it reads.
        number: the number, [R], from what is seen and a memory, called after every loop; the first signal if left out.
        earliest: no stop before this loop.
        test: the comparison: `operator.lt`, `gt` or `ge`.
        late: whether it stops one loop after the comparison held.
        budget: the loop at which everything stops; None for the last loop there is.
    """

    name: str = ""
    threshold: float = 0.0
    signals: tuple[str, ...] = ()
    number: Callable[[Seen, dict[str, Any]], Array] | None = None
    earliest: int = 2
    test: Callable[[Any, Any], Any] = lt
    late: bool = False
    budget: int | None = None

    def value(self, seen: Seen, memory: dict[str, Any]) -> Array:
        """The number that is compared, [R]."""
        return seen.signal(self.signals[0]) if self.number is None else self.number(seen, memory)

    def decide(self, seen: Seen, memory: dict[str, Any]) -> Decision:
        """Stop where the comparison holds."""
        if self.number is None and seen.depth < self.earliest:
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
    before, memory["entropy"] = memory.get("entropy", float("nan")), seen.signal("entropy")
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
    before, memory["acceleration"] = memory.get("acceleration", float("nan")), now
    return now * (now >= before) + before * (now < before) + 0.0 * before


def _ratio(above: str, below: str) -> Callable[[Seen, Any], Array]:
    return lambda seen, _: seen.signal(above) / seen.signal(below)


RULES = {
    rule.name: rule
    for rule in (
        ThresholdRule("Ouro gate", 1.0, ("gate",), _gate_sum, 1, ge),
        ThresholdRule("Ouro gate, one late", 1.0, ("gate",), _gate_sum, 2, ge, late=True),
        ThresholdRule("KL", 5e-4, ("kl_from_previous",)),
        ThresholdRule("min-p KL", 1e-5, ("kl_min_p",)),
        ThresholdRule("entropy difference", 1e-3, ("entropy",), _entropy_change),
        ThresholdRule("latent difference", 0.03, ("step_norm", "state_norm"), _ratio("step_norm", "state_norm")),
        ThresholdRule("hidden difference", 1e-2, ("step_norm",)),
        ThresholdRule("cosine", 1e-3, ("state_cosine",), lambda seen, _: 1.0 - seen.signal("state_cosine")),
        ThresholdRule("argmax stability", 5, ("top_id",), _unchanged, 2, ge),
        ThresholdRule("acceleration", 1e-3, ("acceleration",), _larger_acceleration, 3),
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
    """A published exit rule by its name (`RULES`).

    Args:
        name: "entropy", "KL", "Ouro gate", …
        threshold: what its number is compared with; the published one by default.
        changes: of `ThresholdRule`: `earliest`, the first loop at which it may stop, and `budget`, the loop at which
            it stops in any case.
    """
    if name not in RULES:
        raise LoopscopeError(f"there is no exit rule {name!r}: choose from {', '.join(map(repr, RULES))}")
    if threshold is not None:
        changes["threshold"] = threshold
    return dataclasses.replace(RULES[name], **changes)


@dataclass(frozen=True)
class FixedDepth(Policy):
    """Stop at a loop."""

    depth: int

    @property
    def name(self) -> str:  # type: ignore[override]
        """The depth."""
        return f"fixed {self.depth}"

    def decide(self, seen: Seen, memory: Any) -> Decision:
        """Stop there."""
        return Decision(seen.depth >= self.depth)


@dataclass(frozen=True)
class FixedScale(Policy):
    """The step to loop `first`, and every later one, is taken at scale α; `stop` reads there."""

    scale: float
    first: int = 1
    stop: bool = False

    @property
    def name(self) -> str:  # type: ignore[override]
        """The scale and where it begins."""
        where = "at" if self.stop else "from"
        return f"scale {self.scale:g} {where} {self.first - 1}→{self.first}"

    def decide(self, seen: Seen, memory: Any) -> Decision:
        """The scale at its loops."""
        reached = seen.depth >= self.first
        return Decision(self.stop and reached, self.scale if reached else 1.0)


@dataclass(frozen=True)
class Taps(Policy):
    """Every step at the share of progress in the recent updates: 1 while they agree, smaller where they turn."""

    decay: float = 0.8
    name: str = "TAPS"
    signals: tuple[str, ...] = ("states",)

    def decide(self, seen: Seen, memory: dict[str, Any]) -> Decision:
        """The scale of this step, from the moments up to it."""
        step = seen.states[0] - seen.states[1]
        memory["mean"] = self.decay * memory.get("mean", 0.0) + (1 - self.decay) * step
        memory["square"] = self.decay * memory.get("square", 0.0) + (1 - self.decay) * (step * step).sum(-1)
        weight = 1 - self.decay**seen.depth
        progress = (memory["mean"] * memory["mean"]).sum(-1) / weight
        return Decision(scale=(progress / (memory["square"] + 1e-12)).clip(0, 1))


@dataclass(frozen=True)
class ScaledReadout(Policy):
    """Stop at a loop and read beyond it, or before it where omega is negative."""

    depth: int
    reference: int | None = None
    omega: float = 0.0
    direction: Direction = "chord"

    @property
    def name(self) -> str:  # type: ignore[override]
        """The direction, its ends and the rule of the scale."""
        if self.direction == "temperature":
            return f"temperature at {self.depth}"
        label = "margin-scaled" if isinstance(self, MarginScaled) else "scaled"
        part = ", orthogonal" if self.direction == "orthogonal" else ""
        return f"{label} {self.reference}>{self.depth}{part}"

    def decide(self, seen: Seen, memory: Any) -> Decision:
        """Stop there, with the scale."""
        if seen.depth < self.depth:
            return Decision()
        return Decision(True, omega=self.scale(seen))

    def scale(self, seen: Seen) -> Array | float:
        """Omega, the same for every position."""
        return self.omega


@dataclass(frozen=True)
class MarginScaled(ScaledReadout):
    """The less certain the readout, the further it goes: `omega` is the cap."""

    def scale(self, seen: Seen) -> Array:
        """Omega by position."""
        return self.omega * (1 - seen.signal("margin"))
