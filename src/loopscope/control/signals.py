"""The signals, each by its formula from states and logits, and what a policy is shown while a model runs.

H_t state after loop t, D_t = H_t − H_{t−1}, z_t logits, p_t = softmax(z_t), v = z_t − z_{t−1}. Names are the columns of
the table `trace`. States are computed with in the dtype that they are given in, softmaxes as `readout.softmax` says.

Shapes: R positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from loopscope.control.policy import SIGNALS, Seen
from loopscope.errors import LoopscopeError
from loopscope.readout.softmax import Softmax, SoftmaxChange


def of_states(name: str, states: Sequence[Tensor]) -> Tensor:
    """A signal of H_t, H_{t−1} and H_{t−2}, as many as there are; NaN where it needs one that is not there."""
    needed, formula = _OF_STATES[name]
    return formula(*states[:needed]) if len(states) >= needed else _missing(states[0])


def _norm(x_RD: Tensor) -> Tensor:
    return x_RD.square().sum(dim=-1).sqrt()


def _cosine(a_RD: Tensor, b_RD: Tensor) -> Tensor:
    """NaN where one of the two is zero."""
    return (a_RD * b_RD).sum(dim=-1) / (_norm(a_RD) * _norm(b_RD))


_OF_STATES: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "state_norm": (1, _norm),  # ‖H_t‖
    "step_norm": (2, lambda now, before: _norm(now - before)),  # ‖D_t‖
    "state_cosine": (2, _cosine),  # cos(H_t, H_{t−1})
    "acceleration": (3, lambda now, before, earlier: _norm(now - 2 * before + earlier)),  # ‖D_t − D_{t−1}‖
    "step_cosine": (3, lambda now, before, earlier: _cosine(now - before, before - earlier)),  # cos(D_t, D_{t−1})
}
_OF_LOGITS: dict[str, Callable[[Softmax], Tensor]] = {
    "top_id": lambda p: p.top_id_n,  # the likeliest token
    "top_prob": lambda p: p.top_probability_n,  # p(1), the largest probability
    "margin": lambda p: p.margin_n,  # p(1) − p(2)
    "entropy": lambda p: p.entropy_n,  # −Σ p log p, in nats
}
_OF_CHANGE: dict[str, Callable[[SoftmaxChange], Tensor]] = {
    "kl_from_previous": lambda change: change.divergence_n,  # KL(p_{t−1} ‖ p_t)
    "kl_to_previous": lambda change: change.reverse_divergence_n,  # KL(p_t ‖ p_{t−1})
    "kl_min_p": lambda change: change.min_p_divergence_n,  # KL(p̃_{t−1} ‖ p̃_t), of floored p
    "mean_v": lambda change: change.mean_n,  # E_{p_{t−1}}[v]
    "var_v": lambda change: change.variance_n,  # Var_{p_{t−1}}(v); under an affine readout Q = −var_v / 2
}

Logits = Callable[[int], Tensor | None]
"""The logits [R, V] after a loop, by depth; None where there are none (before the first loop)."""


def live(depth: int, states: Sequence[Tensor], logits: Logits, gate: Tensor | None = None) -> Seen:
    """What a policy is shown of R positions after a loop; each signal is computed when it is first asked for.

    `logits` is called once for every depth that a signal needs; whoever gives it counts its calls as checks.
    """

    @cache
    def softmax(wanted: int) -> Softmax | None:
        logits_RV = logits(wanted) if wanted >= 1 else None
        return None if logits_RV is None else Softmax(logits_RV)

    @cache
    def signal(name: str) -> Tensor:
        found: Tensor | None = gate
        if name in _OF_STATES:
            found = of_states(name, states)
        elif name in _OF_LOGITS:
            now = softmax(depth)
            found = None if now is None else _OF_LOGITS[name](now)
        elif name in _OF_CHANGE:
            before, now = softmax(depth - 1), softmax(depth)
            found = None if before is None or now is None else _OF_CHANGE[name](SoftmaxChange(before, now))
        elif name != "gate":
            raise LoopscopeError(f"there is no signal {name!r}: choose from {', '.join(SIGNALS)}")
        return _missing(states[0]) if found is None else found

    return Seen(depth, tuple(states), signal)


def _missing(state_RD: Tensor) -> Tensor:
    return state_RD.new_full((state_RD.shape[0],), torch.nan)
