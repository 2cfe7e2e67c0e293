"""Shared oracle and cases: affine utilities in Arb ball arithmetic, and logits that try to break float64."""

from __future__ import annotations

import functools
from dataclasses import dataclass

try:
    import flint
except ImportError:  # the tests on a GPU do without
    flint = None
import pytest
import torch


@dataclass(frozen=True)
class Exact:
    """Arb values of one token's quantities, and the sums of absolute terms that set their rounding scale."""

    values: dict[str, flint.arb]
    scales: dict[str, flint.arb]

    def error(self, name: str, computed: float) -> tuple[float, float]:
        """Error of a float relative to the exact value, and relative to the quantity's natural scale."""
        exact, scale = self.values[name], self.scales[name]
        difference = float(abs(flint.arb(computed) - exact).mid())
        size, natural = float(abs(exact).mid()), float(scale.mid())
        return _ratio(difference, size), _ratio(difference, natural)


def _ratio(difference: float, size: float) -> float:
    if difference == 0.0:
        return 0.0
    return difference / size if size > 0.0 else float("inf")


def _exact_at(z0, v, y, alpha, precision):
    flint.ctx.prec = precision
    arb = flint.arb
    z0_a, v_a, al = [arb(float(x)) for x in z0], [arb(float(x)) for x in v], arb(float(alpha))

    def softmax(scale):
        z = [a + scale * b for a, b in zip(z0_a, v_a, strict=True)]
        top = max(range(len(z)), key=lambda a: float(z[a].mid()))
        w = [(a - z[top]).exp() for a in z]
        total = sum(w, arb(0))
        return [a / total for a in w], z[top] + total.log(), z

    p0, log0, z_start = softmax(arb(0))
    p, log_a, _ = softmax(al)
    t = [a - v_a[y] for a in v_a]
    mean = sum((a * b for a, b in zip(p, v_a, strict=True)), arb(0))
    c = [a - mean for a in v_a]
    m2, m3, m4, a3 = arb(0), arb(0), arb(0), arb(0)
    for pa, ca in zip(p, c, strict=True):
        square = pa * ca * ca
        m2, m3, m4, a3 = m2 + square, m3 + square * ca, m4 + square * ca * ca, a3 + square * abs(ca)
    gain = al * v_a[y] - (log_a - log0)
    gain_terms = sum((pa * abs((al * ta).expm1()) for pa, ta in zip(p0, t, strict=True)), arb(0)) * gain.exp()
    slope = -sum((pa * ta for pa, ta in zip(p, t, strict=True)), arb(0))
    slope_terms = sum((pa * abs(ta) for pa, ta in zip(p, t, strict=True)), arb(0))
    values = {
        "value": gain,
        "first": slope,
        "second": -m2,
        "third": -m3,
        "fourth": -(m4 - 3 * m2 * m2),
        "initial": z_start[y] - log0,
    }
    scales = {
        "value": gain_terms if float(abs(gain).mid()) < 1 else abs(gain),
        "first": slope_terms,
        "second": m2,
        "third": a3,
        "fourth": m4 + 3 * m2 * m2,
        "initial": abs(values["initial"]),
    }
    return values, scales


def _exact_ends(z0, v, precision):
    flint.ctx.prec = precision
    arb = flint.arb
    z = [arb(float(x)) for x in z0]
    z1 = [a + arb(float(b)) for a, b in zip(z, v, strict=True)]

    def log_softmax(logits):
        top = max(range(len(logits)), key=lambda a: float(logits[a].mid()))
        total = logits[top] + sum(((a - logits[top]).exp() for a in logits), arb(0)).log()
        return [a - total for a in logits]

    lp, lq = log_softmax(z), log_softmax(z1)
    p, q = [a.exp() for a in lp], [a.exp() for a in lq]
    top = max(lp, key=lambda a: float(a.mid()))
    kl = sum((a * (b - c) for a, b, c in zip(p, lp, lq, strict=True)), arb(0))
    reverse = sum((a * (b - c) for a, b, c in zip(q, lq, lp, strict=True)), arb(0))
    h0 = -sum((a * b for a, b in zip(p, lp, strict=True)), arb(0))
    h1 = -sum((a * b for a, b in zip(q, lq, strict=True)), arb(0))
    moved = sum((abs(b - a) * (top - c) for a, b, c in zip(p, q, lp, strict=True)), arb(0))
    values = {
        "divergence": kl,
        "reverse_divergence": reverse,
        "initial_entropy": h0,
        "final_entropy": h1,
        "entropy_change": h1 - h0,
    }
    scales = {k: abs(x) for k, x in values.items()}
    scales["entropy_change"] = min(moved + reverse, h0 + h1, key=lambda a: float(a.mid()))
    return values, scales


def _refined(function, *args):
    """Raise the working precision until every ball is far narrower than float64 can see."""
    precision = 160
    while True:
        values, scales = function(*args, precision)
        if all(x.rad() == 0 or x.rel_accuracy_bits() > 80 or _is_zero(x, scales[k]) for k, x in values.items()):
            return Exact(values, scales)
        precision *= 2
        if precision > 8192:
            pytest.fail("the oracle did not converge")


def _is_zero(value, scale):
    return bool(value.contains(0)) and float(value.abs_upper()) <= 1e-40 * max(float(scale.mid()), 1e-280)


@pytest.fixture(scope="session")
def exact_path():
    """exact_path(z0, v, y, alpha) -> Exact: φ … φ'''' and log p_y(0) of one token."""
    found = functools.cache(lambda *given: _refined(_exact_at, *given))
    return lambda z0, v, y, alpha: found(tuple(z0.tolist()), tuple(v.tolist()), int(y), float(alpha))


@pytest.fixture(scope="session")
def exact_ends():
    """exact_ends(z0, v) -> Exact: divergences and entropies of one token's two endpoints."""
    return lambda z0, v: _refined(_exact_ends, z0.tolist(), v.tolist())


def _peaked(generator, size, gap, displacement):
    z0 = torch.randn(size, generator=generator, dtype=torch.float64)
    z0[0] += gap + 3.0
    return z0, displacement * torch.randn(size, generator=generator, dtype=torch.float64)


def affine_cases() -> dict[str, tuple[torch.Tensor, torch.Tensor, int]]:
    """Named single tokens (z0, v, y), ordinary and adversarial."""
    g = torch.Generator().manual_seed(20260904)

    def randn(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    cases: dict[str, tuple[torch.Tensor, torch.Tensor, int]] = {}
    for size in (2, 3, 17, 1000):
        cases[f"random-{size}"] = (3.0 * randn(size), randn(size), size // 2)
        cases[f"tiny-displacement-{size}"] = (3.0 * randn(size), 1e-8 * randn(size), size // 2)
        cases[f"huge-displacement-{size}"] = (3.0 * randn(size), 1e2 * randn(size), size // 2)
        for name, displacement in (("unit", 1.0), ("tiny", 1e-8), ("huge", 1e2)):
            cases[f"certain-target-{name}-{size}"] = (*_peaked(g, size, 36.0, displacement), 0)
            cases[f"certain-other-{name}-{size}"] = (*_peaked(g, size, 36.0, displacement), 1)
    flat = torch.zeros(300, dtype=torch.float64)
    outlier = 1.0 + 1e-3 * randn(300)
    outlier[0] = 1e5
    cases["flat-with-outlier"] = (flat, outlier, 7)
    cases["nearly-constant-displacement"] = (randn(500), 100.0 + 1e-8 * randn(500), 3)
    handover = torch.full((40,), 100.0, dtype=torch.float64) + 1e-8 * randn(40)
    handover[0] = 1.0 / 3.0
    start = randn(40)
    start[0] = 40.0
    cases["handover"] = (start, handover, 5)
    cases["far-apart"] = (200.0 * randn(60), 50.0 * randn(60), 11)
    cases["very-certain"] = (torch.tensor([300.0, 0.0, -1.0]).double(), torch.tensor([0.1, 0.4, -0.7]).double(), 0)
    cases["climber-from-nothing"] = (
        torch.tensor([0.0, -800.0, -1.0]).double(),
        torch.tensor([0.0, 799.0, 0.5]).double(),
        0,
    )
    cases["shifted-logits"] = (1000.0 + randn(30), 500.0 + randn(30), 2)
    return cases


@pytest.fixture(params=sorted(affine_cases()))
def affine_case(request):
    """Each named case in turn."""
    return request.param, *affine_cases()[request.param]


@pytest.fixture(scope="session")
def language_model_logits():
    """A maker of peaked logits such as a language model's head gives, with displacements that go along with them."""

    def make(examples: int, tokens: int, vocabulary: int, seed: int):
        g = torch.Generator().manual_seed(seed)

        def randn(*shape):
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        T = examples * tokens
        z0 = 2.0 * randn(T, vocabulary)
        few = torch.randint(0, vocabulary, (T, 5), generator=g)
        z0.scatter_add_(1, few, 6.0 + 4.0 * randn(T, 5).abs())
        size = torch.exp(0.7 * randn(T, 1))
        v = size * (0.15 * randn(T, 1) * z0 + 0.4 * randn(T, vocabulary))
        v.scatter_add_(1, few, size * randn(T, 5))
        pick = torch.randint(0, 5, (T, 1), generator=g)
        targets = few.gather(1, pick)[:, 0]
        return z0, v, targets, torch.arange(examples).repeat_interleave(tokens)

    return make
