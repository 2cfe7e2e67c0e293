"""The signals, each by its formula from states and logits, and what a policy is shown while a model runs.

H_t state after loop t, D_t = H_t − H_{t−1}, z_t logits, p_t = softmax(z_t), v = z_t − z_{t−1}. Names are the columns of
the table `trace`. Everything is computed in the dtype that it is given.

Shapes: R positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from loopscope.control.policy import SIGNALS, Seen
from loopscope.errors import LoopscopeError

MIN_P = 0.1
"""Probabilities below this share of the largest become 1/V in the min-p divergence."""


def of_states(name: str, states: Sequence[Tensor]) -> Tensor:
    """A signal of H_t, H_{t−1} and H_{t−2}, as many as there are; NaN where it needs one that is not there."""
    needed, formula = _OF_STATES[name]
    return formula(*states[:needed]) if len(states) >= needed else _missing(states[0])


def _norm(x_RD: Tensor) -> Tensor:
    return x_RD.square().sum(dim=-1).sqrt()


def _cosine(a_RD: Tensor, b_RD: Tensor) -> Tensor:
    """NaN where one of the two is zero."""
    return (a_RD * b_RD).sum(dim=-1) / (_norm(a_RD) * _norm(b_RD))


def _margin(z_RV: Tensor) -> Tensor:
    p_R2 = z_RV.softmax(dim=-1).topk(2, dim=-1).values
    return p_R2[:, 0] - p_R2[:, 1]


def _entropy(z_RV: Tensor) -> Tensor:
    log_p_RV = z_RV.log_softmax(dim=-1)
    return -(log_p_RV.exp() * log_p_RV).sum(dim=-1)


def _kl(log_p_RV: Tensor, log_q_RV: Tensor) -> Tensor:
    return (log_p_RV.exp() * (log_p_RV - log_q_RV)).sum(dim=-1)


def _floored(z_RV: Tensor) -> Tensor:
    """The logarithm of p with what is below 0.1 · max set to 1/V, normalised again."""
    p_RV = z_RV.softmax(dim=-1)
    kept_RV = torch.where(p_RV < MIN_P * p_RV.amax(dim=-1, keepdim=True), 1 / p_RV.shape[-1], p_RV)
    return (kept_RV / kept_RV.sum(dim=-1, keepdim=True)).log()


def _mean_v(z_RV: Tensor, before_RV: Tensor) -> Tensor:
    return (before_RV.softmax(dim=-1) * (z_RV - before_RV)).sum(dim=-1)


def _var_v(z_RV: Tensor, before_RV: Tensor) -> Tensor:
    centred_RV = z_RV - before_RV - _mean_v(z_RV, before_RV)[:, None]
    return (before_RV.softmax(dim=-1) * centred_RV.square()).sum(dim=-1)


_OF_STATES: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "state_norm": (1, _norm),  # ‖H_t‖
    "step_norm": (2, lambda now, before: _norm(now - before)),  # ‖D_t‖
    "state_cosine": (2, _cosine),  # cos(H_t, H_{t−1})
    "acceleration": (3, lambda now, before, earlier: _norm(now - 2 * before + earlier)),  # ‖D_t − D_{t−1}‖
    "step_cosine": (3, lambda now, before, earlier: _cosine(now - before, before - earlier)),  # cos(D_t, D_{t−1})
}
_OF_LOGITS: dict[str, Callable[[Tensor], Tensor]] = {
    "top_id": lambda z: z.argmax(dim=-1),  # the likeliest token, the first of equals
    "top_prob": lambda z: z.softmax(dim=-1).amax(dim=-1),  # p(1), the largest probability
    "margin": _margin,  # p(1) − p(2)
    "entropy": _entropy,  # −Σ p log p, in nats
}
_OF_CHANGE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl_from_previous": lambda z, before: _kl(before.log_softmax(dim=-1), z.log_softmax(dim=-1)),  # KL(p_{t−1} ‖ p_t)
    "kl_to_previous": lambda z, before: _kl(z.log_softmax(dim=-1), before.log_softmax(dim=-1)),  # KL(p_t ‖ p_{t−1})
    "kl_min_p": lambda z, before: _kl(_floored(before), _floored(z)),  # KL(p̃_{t−1} ‖ p̃_t), of floored p
    "mean_v": _mean_v,  # E_{p_{t−1}}[v]
    "var_v": _var_v,  # Var_{p_{t−1}}(v); under an affine readout Q = −var_v / 2
}

Logits = Callable[[int], Tensor | None]
"""The logits [R, V] after a loop, by depth; None where there are none (before the first loop)."""


class LiveSignals:
    """The signals of R positions after one loop, each computed when it is first asked for.

    `logits` is called once for every depth that a signal needs; whoever gives it counts its calls as checks.
    """

    def __init__(self, depth: int, states: Sequence[Tensor], logits: Logits, gate: Tensor | None = None) -> None:
        self.depth, self.states, self.gate = depth, states, gate
        self._known = cache(self._compute)
        self._logits = cache(lambda wanted: None if wanted < 1 else logits(wanted))

    def __call__(self, name: str) -> Tensor:
        """The signal of that name, [R]."""
        return self._known(name)

    def seen(self) -> Seen:
        """What a policy is shown."""
        return Seen(self.depth, tuple(self.states), self)

    def _compute(self, name: str) -> Tensor:
        if name in _OF_STATES:
            return of_states(name, self.states)
        if name not in SIGNALS:
            raise LoopscopeError(f"there is no signal {name!r}: choose from {', '.join(SIGNALS)}")
        found = self.gate
        if name in _OF_LOGITS:
            now_RV = self._logits(self.depth)
            found = None if now_RV is None else _OF_LOGITS[name](now_RV)
        elif name in _OF_CHANGE:
            before_RV, now_RV = self._logits(self.depth - 1), self._logits(self.depth)
            found = None if now_RV is None or before_RV is None else _OF_CHANGE[name](now_RV, before_RV)
        return _missing(self.states[0]) if found is None else found


def _missing(state_RD: Tensor) -> Tensor:
    dtype = state_RD.dtype if state_RD.is_floating_point() else torch.float32
    return state_RD.new_full((state_RD.shape[0],), torch.nan, dtype=dtype)
