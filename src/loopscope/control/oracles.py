"""Ceilings: what whoever knows the reference could choose, and how much of that is the luck of choosing a maximum.

    best depth      the loop with the best utility, of all from a floor on
    endpoint        the better end of one update
    five scales     the best of α = 0, 1/4, 1/2, 3/4, 1 of one update
    quadratic       α̂ = clip(−A/2Q) of it

Each chooses for a token alone or once for a question. The best of several noisy numbers is above the best mean even if
nothing about a token could ever be foreseen. So every ceiling stands beside its null: with u_ij the utility of row i
under choice j, the residuals u_ij − ū_i − ū_j + ū (times √(J/(J−1)), the size they had before rows were centred) are
shuffled among the rows for every j by itself, and the same oracle chooses again. What a ceiling has above its null is
structure; a ceiling below its null shows none.

Shapes: R reference positions, Q questions, N rows of either kind, J choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loopscope.control.trace import SCALES, Floats, Ints, Trace, interpolation_weights
from loopscope.path import predicted_scale

Per = Literal["token", "question"]
SHUFFLES = 20
SEED = 0


@dataclass(frozen=True)
class Ceiling:
    """One oracle on one trace.

    Attributes:
        name: "best depth", "endpoint", "five scales" or "quadratic".
        per: what it chooses for.
        utility_Q: what it gets, by question.
        base_Q: what the best single choice for all of them gets on these very rows, by question.
        loops_Q: mean loops that it needs.
        null: what the same oracle gains over `base_Q` on shuffled residuals, the mean; None for the quadratic one,
            which does not choose by the utility.
    """

    name: str
    per: Per
    utility_Q: Floats
    base_Q: Floats
    loops_Q: Floats
    null: float | None


def depth_ceilings(trace: Trace, floor: int = 1, last: int | None = None) -> Iterator[Ceiling]:
    """The best depth, by token (of solutions) and by question."""
    last = trace.loops if last is None else min(last, trace.loops)
    depths = np.arange(floor, last + 1)
    by_token_RJ = np.stack([trace.log_prob(int(depth)) for depth in depths], axis=1)
    yield from _ceilings("best depth", trace, by_token_RJ, depths)


def step_ceilings(trace: Trace, depth: int) -> Iterator[Ceiling]:
    """Endpoint, five scales and quadratic of the step to one loop, by token (of solutions) and by question."""
    five_RJ = trace.scaled(depth)
    loops_J = np.full(len(SCALES), depth)
    yield from _ceilings("endpoint", trace, five_RJ[:, [0, -1]], loops_J[:2])
    yield from _ceilings("five scales", trace, five_RJ, loops_J)
    if trace.is_options or "v_reference" not in trace.columns:
        return  # A and Q of the joint utility are not sums over tokens
    A_R, Q_R = coefficients(trace, depth)
    for per in ("token", "question"):
        scale_R = np.asarray(predicted_scale(A_R, Q_R))
        if per == "question":
            scale_R = np.asarray(predicted_scale(trace.mean(A_R), trace.mean(Q_R)))[trace.question_R]
        utility_Q = trace.utility((np.stack(interpolation_weights(scale_R), axis=1) * five_RJ).sum(axis=1))
        base_Q = trace.utility(five_RJ[:, _best(trace, five_RJ)])
        yield Ceiling("quadratic", per, utility_Q, base_Q, np.full(trace.questions, float(depth)), None)


def coefficients(trace: Trace, depth: int) -> tuple[Floats, Floats]:
    """A and Q of the step to a loop, for every token of an affine readout."""
    columns = (trace.columns[name][:, depth - 1].astype(np.float64) for name in ("v_reference", "mean_v", "var_v"))
    reference_R, mean_R, variance_R = columns
    return reference_R - mean_R, -0.5 * variance_R


def shuffled_gain(utility_NJ: Floats, weight_N: Floats, shuffles: int = SHUFFLES, seed: int = SEED) -> float:
    """What the best choice of every row has over the best choice for all of them, on shuffled residuals; the mean."""
    rows_N1 = utility_NJ.mean(axis=1, keepdims=True)
    choices_1J = utility_NJ.mean(axis=0, keepdims=True)
    residual_NJ = utility_NJ - rows_N1 - choices_1J + utility_NJ.mean()
    residual_NJ *= (utility_NJ.shape[1] / (utility_NJ.shape[1] - 1)) ** 0.5  # what centring the rows took
    generator = np.random.default_rng(seed)
    share_N = weight_N / weight_N.sum()
    gains = []
    for _ in range(shuffles):
        mixed_NJ = generator.permuted(residual_NJ, axis=0)
        mixed_NJ += choices_1J
        gains.append(float(share_N @ mixed_NJ.max(axis=1) - (share_N @ mixed_NJ).max()))
    return float(np.mean(gains))


def _ceilings(name: str, trace: Trace, by_token_RJ: Floats, loops_J: Ints) -> Iterator[Ceiling]:
    by_question_QJ = np.stack([trace.utility(column) for column in by_token_RJ.T], axis=1)
    best = _best(trace, by_token_RJ)
    base_Q = by_question_QJ[:, best]
    if not trace.is_options:
        chosen_R = by_token_RJ.argmax(axis=1)
        weight_R = 1 / np.bincount(trace.question_R)[trace.question_R]
        yield Ceiling(
            name,
            "token",
            trace.utility(by_token_RJ.max(axis=1)),
            base_Q,
            trace.mean(loops_J[chosen_R]),
            shuffled_gain(by_token_RJ, weight_R),
        )
    yield Ceiling(
        name,
        "question",
        by_question_QJ.max(axis=1),
        base_Q,
        loops_J[by_question_QJ.argmax(axis=1)].astype(np.float64),
        shuffled_gain(by_question_QJ, np.ones(trace.questions)),
    )


def _best(trace: Trace, by_token_RJ: Floats) -> int:
    return int(np.argmax([trace.utility(column).mean() for column in by_token_RJ.T]))
