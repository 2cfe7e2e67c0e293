"""What a policy is: it decides after every loop, for many positions at once, without the reference.

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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
"""Every signal by the name of its column in the table `trace`; `loopscope.control.signals` has the formulas."""


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

    def start(self, rows: int) -> Any:
        """The policy's own memory for a batch of positions, passed to every `decide`, which may change it."""
        return {}

    def decide(self, seen: Seen, memory: Any) -> Decision:
        """The decision after a loop; called after every loop from the first."""
        raise NotImplementedError


def memory_of(policy: Policy, rows: int) -> Any:
    """A policy's memory for a batch."""
    with user_code(f"start of the policy {policy.name!r}", always=not _is_ours(policy)):
        return policy.start(rows)


def decision_of(policy: Policy, seen: Seen, memory: Any, rows: int) -> Decision:
    """A policy's decision about some positions.

    Raises:
        LoopscopeError: the user's policy failed, or returned something else.
    """
    if _is_ours(policy):
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


def _is_ours(policy: Policy) -> bool:
    return type(policy).__module__.startswith("loopscope.")
