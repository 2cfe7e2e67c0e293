"""The signals, each by its formula from states and logits, and what a policy is shown while a model runs.

H_t state after loop t, D_t = H_t − H_{t−1}, z_t logits, p_t = softmax(z_t), v = z_t − z_{t−1}. Names are the columns of
the table `trace`. Everything is computed in the dtype that it is given.

Shapes: R positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.control.policy import CHANGE_SIGNALS, LOGIT_SIGNALS, SIGNALS, STATE_SIGNALS, Seen
from loopscope.errors import LoopscopeError

MIN_P = 0.1
"""Probabilities below this share of the largest become 1/V in the min-p divergence."""


class States(NamedTuple):
    """H_t, H_{t−1} and H_{t−2}, [R, D]; None where there is none."""

    now: Tensor
    before: Tensor | None = None
    earlier: Tensor | None = None


def state_norm(states: States) -> Tensor:
    """‖H_t‖."""
    return _norm(states.now)


def step_norm(states: States) -> Tensor:
    """‖D_t‖."""
    return _missing(states) if states.before is None else _norm(states.now - states.before)


def state_cosine(states: States) -> Tensor:
    """cos(H_t, H_{t−1})."""
    return _missing(states) if states.before is None else _cosine(states.now, states.before)


def acceleration(states: States) -> Tensor:
    """‖D_t − D_{t−1}‖."""
    if states.before is None or states.earlier is None:
        return _missing(states)
    return _norm(states.now - 2 * states.before + states.earlier)


def step_cosine(states: States) -> Tensor:
    """cos(D_t, D_{t−1})."""
    if states.before is None or states.earlier is None:
        return _missing(states)
    return _cosine(states.now - states.before, states.before - states.earlier)


def top_id(z_RV: Tensor) -> Tensor:
    """The likeliest token, the first of equals."""
    return z_RV.argmax(dim=-1)


def top_prob(z_RV: Tensor) -> Tensor:
    """p(1), the largest probability."""
    return z_RV.softmax(dim=-1).amax(dim=-1)


def margin(z_RV: Tensor) -> Tensor:
    """p(1) − p(2)."""
    p_R2 = z_RV.softmax(dim=-1).topk(2, dim=-1).values
    return p_R2[:, 0] - p_R2[:, 1]


def entropy(z_RV: Tensor) -> Tensor:
    """−Σ p log p, in nats."""
    log_p_RV = z_RV.log_softmax(dim=-1)
    return -(log_p_RV.exp() * log_p_RV).sum(dim=-1)


def kl_from_previous(z_RV: Tensor, before_RV: Tensor) -> Tensor:
    """KL(p_{t−1} ‖ p_t)."""
    return _kl(before_RV.log_softmax(dim=-1), z_RV.log_softmax(dim=-1))


def kl_to_previous(z_RV: Tensor, before_RV: Tensor) -> Tensor:
    """KL(p_t ‖ p_{t−1})."""
    return _kl(z_RV.log_softmax(dim=-1), before_RV.log_softmax(dim=-1))


def kl_min_p(z_RV: Tensor, before_RV: Tensor) -> Tensor:
    """KL(p̃_{t−1} ‖ p̃_t), p̃ being p with what is below 0.1 · max set to 1/V, normalised again."""
    return _kl(_floored(before_RV).log(), _floored(z_RV).log())


def mean_v(z_RV: Tensor, before_RV: Tensor) -> Tensor:
    """E_{p_{t−1}}[v]."""
    return (before_RV.softmax(dim=-1) * (z_RV - before_RV)).sum(dim=-1)


def var_v(z_RV: Tensor, before_RV: Tensor) -> Tensor:
    """Var_{p_{t−1}}(v); under an affine readout Q = −var_v / 2."""
    v_RV = z_RV - before_RV
    centred_RV = v_RV - mean_v(z_RV, before_RV)[:, None]
    return (before_RV.softmax(dim=-1) * centred_RV.square()).sum(dim=-1)


_OF_STATES = dict(zip(STATE_SIGNALS, (state_norm, step_norm, state_cosine, acceleration, step_cosine), strict=True))
_OF_LOGITS = dict(zip(LOGIT_SIGNALS, (top_id, top_prob, margin, entropy), strict=True))
_OF_CHANGE = dict(zip(CHANGE_SIGNALS, (kl_from_previous, kl_to_previous, kl_min_p, mean_v, var_v), strict=True))

Logits = Callable[[int], Tensor | None]
"""The logits [R, V] after a loop, by depth; None where there are none (before the first loop)."""


class LiveSignals:
    """The signals of R positions after one loop, each computed when it is first asked for.

    `logits` is called once for every depth that a signal needs; whoever gives it counts its calls as checks.
    """

    def __init__(self, depth: int, states: States, logits: Logits, gate: Tensor | None = None) -> None:
        self.depth, self.states, self.logits, self.gate = depth, states, logits, gate
        self._known: dict[str, Tensor] = {}
        self._read: dict[int, Tensor | None] = {}

    def __call__(self, name: str) -> Tensor:
        """The signal of that name, [R]."""
        if name not in self._known:
            self._known[name] = self._compute(name)
        return self._known[name]

    def seen(self) -> Seen:
        """What a policy is shown."""
        states = tuple(state for state in self.states if state is not None)
        return Seen(self.depth, states, self, self.gate)

    def _compute(self, name: str) -> Tensor:
        if name in _OF_STATES:
            return _OF_STATES[name](self.states)
        if name == "gate":
            return _missing(self.states) if self.gate is None else self.gate
        if name not in SIGNALS:
            raise LoopscopeError(f"there is no signal {name!r}: choose from {', '.join(SIGNALS)}")
        before_RV = self._logits(self.depth - 1) if name in _OF_CHANGE else None
        now_RV = self._logits(self.depth)
        if name in _OF_LOGITS:
            return _missing(self.states) if now_RV is None else _OF_LOGITS[name](now_RV)
        if now_RV is None or before_RV is None:
            return _missing(self.states)
        return _OF_CHANGE[name](now_RV, before_RV)

    def _logits(self, depth: int) -> Tensor | None:
        if depth < 1:
            return None
        if depth not in self._read:
            self._read[depth] = self.logits(depth)
        return self._read[depth]


def _missing(states: States) -> Tensor:
    dtype = states.now.dtype if states.now.is_floating_point() else torch.float32
    return states.now.new_full((states.now.shape[0],), torch.nan, dtype=dtype)


def _norm(x_RD: Tensor) -> Tensor:
    return x_RD.square().sum(dim=-1).sqrt()


def _cosine(a_RD: Tensor, b_RD: Tensor) -> Tensor:
    """NaN where one of the two is zero."""
    return (a_RD * b_RD).sum(dim=-1) / (_norm(a_RD) * _norm(b_RD))


def _kl(log_p_RV: Tensor, log_q_RV: Tensor) -> Tensor:
    return (log_p_RV.exp() * (log_p_RV - log_q_RV)).sum(dim=-1)


def _floored(z_RV: Tensor) -> Tensor:
    p_RV = z_RV.softmax(dim=-1)
    kept_RV = torch.where(p_RV < MIN_P * p_RV.amax(dim=-1, keepdim=True), 1 / p_RV.shape[-1], p_RV)
    return kept_RV / kept_RV.sum(dim=-1, keepdim=True)
