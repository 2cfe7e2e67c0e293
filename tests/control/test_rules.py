"""Every rule against its formula, written out for one position and one loop at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from control_synthetic import Made

from loopscope.control import FixedDepth, Policy
from loopscope.control.offline import follow
from loopscope.control.policies import RULES, exit_rule
from loopscope.control.trace import Trace
from loopscope.errors import LoopscopeError

MADE = Made()
TRACE = Trace.of(MADE.frame())
H = [state.numpy() for state in MADE.states]
LOOPS = MADE.loops


def p(t: int, i: int) -> np.ndarray:
    z = H[t][i] @ MADE.weight_VD.numpy().T
    e = np.exp(z - z.max())
    return e / e.sum()


def d(t: int, i: int) -> np.ndarray:
    return H[t][i] - H[t - 1][i]


def kl(a: np.ndarray, b: np.ndarray) -> float:
    return float(sum(x * math.log(x / y) for x, y in zip(a, b, strict=True)))


def with_floor(a: np.ndarray) -> np.ndarray:
    kept = np.array([x if x >= 0.1 * max(a) else 1 / len(a) for x in a])
    return kept / kept.sum()


def s(a: np.ndarray) -> float:
    return -float(sum(x * math.log(x) for x in a))


def norm(x: np.ndarray) -> float:
    return math.sqrt(float((x**2).sum()))


def cos(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b) / (norm(a) * norm(b))


def gate_cdf(t: int, i: int) -> float:
    remaining, total = 1.0, 0.0
    for j in range(1, t + 1):
        total += float(MADE.gates[j][i]) * remaining
        remaining *= 1 - float(MADE.gates[j][i])
    return total


def stable(n: int) -> Callable[[int, int], bool]:
    return lambda t, i: t > n and all(p(t - k, i).argmax() == p(t - k - 1, i).argmax() for k in range(n))


CASES: dict[str, tuple[Policy, Callable[[int, int], bool]]] = {
    "fixed": (FixedDepth(3), lambda t, i: t == 3),
    "gate": (exit_rule("Ouro gate", 0.6), lambda t, i: gate_cdf(t, i) >= 0.6),
    "gate with a budget": (exit_rule("Ouro gate", 0.7, budget=4), lambda t, i: gate_cdf(t, i) >= 0.7 or t == 4),
    "late gate": (exit_rule("Ouro gate, one late", 0.6), lambda t, i: t > 1 and gate_cdf(t - 1, i) >= 0.6),
    "KL": (exit_rule("KL", 0.2), lambda t, i: t > 1 and kl(p(t - 1, i), p(t, i)) < 0.2),
    "min-p KL": (
        exit_rule("min-p KL", 0.2),
        lambda t, i: t > 1 and kl(with_floor(p(t - 1, i)), with_floor(p(t, i))) < 0.2,
    ),
    "entropy difference": (
        exit_rule("entropy difference", 0.1),
        lambda t, i: t > 1 and abs(s(p(t, i)) - s(p(t - 1, i))) < 0.1,
    ),
    "latent difference": (
        exit_rule("latent difference", 0.4),
        lambda t, i: t > 1 and norm(d(t, i)) / norm(H[t][i]) < 0.4,
    ),
    "hidden difference": (exit_rule("hidden difference", 1.0), lambda t, i: t > 1 and norm(d(t, i)) < 1.0),
    "cosine": (exit_rule("cosine", 0.1), lambda t, i: t > 1 and 1 - cos(H[t][i], H[t - 1][i]) < 0.1),
    "argmax": (exit_rule("argmax stability", 2), stable(2)),
    "acceleration": (
        exit_rule("acceleration", 1.8),
        lambda t, i: t > 2 and all(norm(d(k, i) - d(k - 1, i)) < 1.8 for k in (t, t - 1)),
    ),
    "relative acceleration": (
        exit_rule("relative acceleration", 0.5),
        lambda t, i: t > 1 and norm(d(t, i) - d(t - 1, i)) / norm(H[t][i]) < 0.5,
    ),
    "top-1": (exit_rule("top-1 probability", 0.7), lambda t, i: max(p(t, i)) > 0.7),
    "margin": (exit_rule("margin", 0.5), lambda t, i: np.sort(p(t, i))[-1] - np.sort(p(t, i))[-2] > 0.5),
    "entropy": (exit_rule("entropy", 0.8), lambda t, i: s(p(t, i)) < 0.8),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_stops_where_its_formula_says(name: str) -> None:
    policy, formula = CASES[name]
    expected = [
        next((t for t in range(1, LOOPS + 1) if formula(t, i) and t >= policy.earliest), LOOPS)
        for i in range(len(TRACE))
    ]
    assert follow(policy, TRACE).depth_R.tolist() == expected
    assert len(set(expected)) > 1 or name == "fixed"  # a rule that never decides would prove nothing


def test_every_published_rule_has_its_formula_here() -> None:
    assert {policy.name for policy, _ in CASES.values()} >= set(RULES)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_decides_the_same_on_states_as_on_the_trace(name: str) -> None:
    policy, _ = CASES[name]
    depth = torch.full((len(TRACE),), LOOPS)
    going, memory = torch.ones(len(TRACE), dtype=torch.bool), {}
    for t in range(1, LOOPS):
        decision = policy.decide(MADE.at(t), memory)
        stop = going & torch.as_tensor(decision.stop) & (t >= policy.earliest)
        depth[stop] = t
        going &= ~stop
    assert depth.tolist() == follow(policy, TRACE).depth_R.tolist()


def test_a_users_policy_that_fails_is_one_line_with_its_place() -> None:
    class Wrong(Policy):
        name = "wrong"

        def decide(self, seen, memory):  # type: ignore[no-untyped-def]
            return seen.depth / 0

    with pytest.raises(
        LoopscopeError, match=r"after loop 1 failed: ZeroDivisionError.*test_rules\.py, line \d+.*/ 0\)"
    ):
        follow(Wrong(), TRACE)
