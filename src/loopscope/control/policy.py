"""The protocol of a policy: what it may see after a loop, and what it decides.

After loop t, with H_t just computed from H_{t−1} and D_t = H_t − H_{t−1}, a policy is asked about R positions at once.
It may stop them, and it may shorten the step that was just taken: the state becomes H_{t−1} + scale · D_t. Nothing that
it sees depends on the reference.

Arrays are torch tensors while a model runs and NumPy arrays over a recorded trace. A policy that keeps to operators
(`+ − * / < & | ~`, `abs`) and to `seen.signal` works on both. NaN stands for a signal that is not there yet (a change
of the logits after the first loop); a comparison with NaN is false, so no rule stops on one.

    class Settled:                                  # a policy of one's own
        name, earliest, signals = "settled", 2, ("entropy", "step_norm")
        def start(self, rows):
            return {}
        def decide(self, seen, memory):
            return Decision(stop=seen.signal("entropy") * seen.signal("step_norm") < 0.5)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = Any
"""A torch tensor or a NumPy array, one entry per position."""

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
    """What may be seen after a loop.

    Attributes:
        depth: t, the loops done.
        states: H_t, H_{t−1}, H_{t−2}, as many as there are, [R, D] each; empty over a trace, which holds no states.
        signal: a named signal, [R]; logits are computed, and charged, when a signal that needs them is first asked for.
    """

    depth: int
    states: tuple[Tensor, ...]
    signal: Callable[[str], Array]


@dataclass(frozen=True)
class Decision:
    """What a policy decides for R positions.

    Attributes:
        stop: which positions stop here, bool [R], or one truth value for all.
        scale: the state becomes H_{t−1} + scale · D_t, [R] or one number for all; 1 leaves H_t as it is.
    """

    stop: Array | bool = False
    scale: Array | float = 1.0


@runtime_checkable
class Policy(Protocol):
    """When to stop, and how far to step; its three attributes are plain ones in a class of your own."""

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def earliest(self) -> int:
        """No position stops before this loop, whatever `decide` says."""

    @property
    def signals(self) -> tuple[str, ...]:
        """What it reads: names of `SIGNALS`, and "states" for the states themselves."""
        ...

    def start(self, rows: int) -> Any:
        """The policy's own memory for a batch of positions, handed to every `decide`, which may change it."""

    def decide(self, seen: Seen, memory: Any) -> Decision:
        """The decision after a loop; asked after every loop from the first."""


@runtime_checkable
class Stepper(Protocol):
    """A policy that takes the step itself, with as many calls of the looped block as it makes of `block`.

    It needs the model at hand: nothing recorded says where its states go.
    """

    def step(self, block: Callable[[Tensor], Tensor], state: Tensor) -> Tensor:
        """The state after the loop, from the one before; `block` is F at this depth."""
