"""Softmax quantities against SciPy; `affine/test_endpoint.py` has the differences of two against Arb."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import entr, log_softmax, rel_entr

from loopscope.readout.softmax import MIN_P, Softmax, SoftmaxChange, likeliest, log_probability


def two(vocabulary: int, scale: float, step: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of 20 rows before and after a step."""
    generator = torch.Generator().manual_seed(vocabulary)
    z0 = scale * torch.randn(20, vocabulary, generator=generator, dtype=torch.float64)
    return z0, z0 + step * torch.randn(20, vocabulary, generator=generator, dtype=torch.float64)


def quantities(z0: torch.Tensor, z1: torch.Tensor) -> dict[str, torch.Tensor]:
    after = Softmax(z1)
    change, ids = SoftmaxChange(Softmax(z0), after), torch.arange(len(z1)) % z1.shape[1]
    return {
        "log_probability": after.log_probability(ids),
        "entropy": after.entropy_n,
        "top": after.probability(after.top_two.logits_nK)[:, 0],
        "margin": after.margin_n,
        "divergence": change.divergence_n,
        "reverse": change.reverse_divergence_n,
        "entropy change": change.entropy_n,
        "min-p": change.min_p_divergence_n,
        "mean": change.mean_n,
        "variance": change.variance_n,
    }


def by_scipy(z0: np.ndarray, z1: np.ndarray) -> dict[str, np.ndarray]:
    (lp, lq), v = (log_softmax(z, axis=1) for z in (z0, z1)), z1 - z0
    p, q = np.exp(lp), np.exp(lq)
    ids = np.arange(len(z1)) % z1.shape[1]
    ordered = np.sort(q, axis=1)
    second = ordered[:, -2] if q.shape[1] > 1 else 0.0
    floored = [np.where(x < MIN_P * x.max(1, keepdims=True), 1 / x.shape[1], x) for x in (p, q)]
    w, u = (x / x.sum(1, keepdims=True) for x in floored)
    mean = (p * v).sum(1)
    return {
        "log_probability": np.take_along_axis(lq, ids[:, None], 1)[:, 0],
        "entropy": entr(q).sum(1),
        "top": ordered[:, -1],
        "margin": ordered[:, -1] - second,
        "divergence": rel_entr(p, q).sum(1),
        "reverse": rel_entr(q, p).sum(1),
        "entropy change": entr(q).sum(1) - entr(p).sum(1),
        "min-p": rel_entr(w, u).sum(1),
        "mean": mean,
        "variance": (p * (v - mean[:, None]) ** 2).sum(1),
    }


@pytest.mark.parametrize("vocabulary", [1, 65, 3000])
def test_quantities_are_those_of_scipy(vocabulary: int) -> None:
    for scale, step in ((6.0, 1e-3), (6.0, 5.0), (30.0, 20.0)):
        z0, z1 = two(vocabulary, scale, step)
        expected = by_scipy(z0.numpy(), z1.numpy())
        for name, values in quantities(z0, z1).items():
            np.testing.assert_allclose(values.numpy(), expected[name], rtol=1e-11, atol=2e-13, err_msg=name)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 100.0])
def test_float32_logits_lose_only_their_own_rounding(scale: float) -> None:
    z0, z1 = (z.float() for z in two(3000, 6.0, scale / 20))
    exact = quantities(z0.double(), z1.double())
    for name, values in quantities(z0, z1).items():
        np.testing.assert_allclose(values.double(), exact[name], rtol=4e-6, atol=4e-6, err_msg=name)


def test_entries_without_probability_give_no_nan() -> None:
    z0, z1 = two(10, 2.0, 1.0)
    kept = {name: values for name, values in quantities(z0, z1).items() if name not in ("log_probability", "min-p")}
    for absent in (-torch.inf, -3e38):
        more = torch.full((20, 3), absent, dtype=torch.float64)
        found = quantities(torch.cat([z0, more], 1), torch.cat([z1, more], 1))
        for name, values in kept.items():
            torch.testing.assert_close(found[name], values, rtol=1e-13, atol=1e-13, msg=name)


def test_the_likeliest_are_those_of_topk() -> None:
    for vocabulary, count in ((1, 1), (63, 2), (64, 9), (700, 5), (4099, 1), (4099, 9)):
        z = two(vocabulary, 1.0, 0.0)[0]
        found, expected = likeliest(z, count), z.topk(count)
        assert torch.equal(found.ids_nK, expected.indices)
        assert torch.equal(found.logits_nK, expected.values)
        assert torch.equal(Softmax(z).rank(expected.indices[:, -1]), torch.full((20,), count))


def test_of_equal_logits_the_lower_id_is_first() -> None:
    z = torch.zeros(2, 1000)
    z[:, [700, 3, 90]] = 5.0
    z[1, 95] = 6.0
    assert likeliest(z, 4).ids_nK[:, :3].tolist() == [[3, 90, 700], [95, 3, 90]]


def test_peaked_rows_keep_the_log_probability_of_the_likeliest() -> None:
    z = torch.tensor([[0.0, -40.0], [800.0, 0.0]], dtype=torch.float64)
    found = log_probability(z, torch.tensor([0, 1]))
    torch.testing.assert_close(found, torch.tensor([-np.log1p(np.exp(-40.0)), -800.0]).double(), rtol=1e-12, atol=1e-17)
