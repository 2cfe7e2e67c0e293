"""The float64 kernels of an affine path as they are compiled for an accelerator, against plain code; `make test-gpu`.

What the interpreter cannot show: threads that disagree about a number, contracted products, literals of float32.
"""

from __future__ import annotations

import mpmath
import pytest
import torch

from loopscope.readout import affine_path, affine_path_from_states

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
NODES = [k / 256 for k in range(257)]


@pytest.fixture(autouse=True)
def _inference():
    """The kernels know no gradients."""
    with torch.no_grad():
        yield


def _logits(tokens, vocabulary, size, peak):
    g = torch.Generator("cuda").manual_seed(vocabulary)
    z0 = 7.2 * torch.randn(tokens, vocabulary, generator=g, dtype=torch.float64, device="cuda")
    z0[:, 3] += peak
    v = 5.0 * size + size * torch.randn(tokens, vocabulary, generator=g, dtype=torch.float64, device="cuda")
    return z0, v, torch.randint(vocabulary, (tokens,), generator=g, device="cuda")


@pytest.mark.parametrize("size", [1e-6, 0.05, 2.1, 6.0, 40.0, 400.0])
@pytest.mark.parametrize("peak", [0.0, 40.0, 90.0])
def test_derivatives_at_many_scales_are_the_references(size, peak):
    z0, v, y = _logits(5, 20_011, size, peak)
    y[0] = 3
    path = affine_path(z0, v, y).per_token()
    found = path.derivatives(NODES, 4).stack
    assert path.ways_taken == {"fp64_kernel"}
    expected = affine_path(z0, v, y, impl="reference").per_token().derivatives(NODES, 4).stack
    torch.testing.assert_close(found[2], expected[2], rtol=5e-13, atol=0.0)
    for k, share in ((0, 2e-13), (1, 2e-13), (3, 2e-13), (4, 2e-12)):  # where they change sign, none keeps its digits
        assert float((found[k] - expected[k]).abs().max()) <= share * float(expected[k].abs().max())


def test_digits_against_fifty_of_them():
    z0, v, y = _logits(1, 500, 2.1, 0.0)
    found = affine_path(z0, v, y, impl="fp64_kernel").derivatives(NODES, 3).stack
    with mpmath.workdps(50):
        z, u = ([mpmath.mpf(x) for x in row[0].tolist()] for row in (z0, v))
        label = int(y)
        start = mpmath.log(mpmath.fsum(mpmath.exp(a) for a in z))
        for k in (0, 31, 32, 64, 65, 200, 256):
            alpha = mpmath.mpf(NODES[k])
            w = [mpmath.exp(a + alpha * b) for a, b in zip(z, u, strict=True)]
            mass = mpmath.fsum(w)
            p = [x / mass for x in w]
            mean = mpmath.fdot(p, u)
            moments = [mpmath.fsum(x * (b - mean) ** m for x, b in zip(p, u, strict=True)) for m in (2, 3)]
            exact = [alpha * u[label] - mpmath.log(mass) + start, u[label] - mean, -moments[0], -moments[1]]
            for m, number in enumerate(exact):
                assert abs(mpmath.mpf(float(found[m, k])) - number) <= 1e-13 * max(1e-3, abs(float(number))), (m, k)


def test_from_states_and_again_bit_for_bit():
    g = torch.Generator("cuda").manual_seed(5)
    h = torch.randn(70, 96, generator=g, device="cuda").bfloat16()
    h_plus = (h + 0.3 * torch.randn(70, 96, generator=g, device="cuda")).bfloat16()
    weight = (0.7 * torch.randn(9001, 96, generator=g, device="cuda")).bfloat16()
    y = torch.randint(9001, (70,), generator=g, device="cuda")
    one, two, plain = (
        affine_path_from_states(h, h_plus, weight, None, y, impl=impl).per_token().derivatives(NODES, 3).stack
        for impl in ("auto", "auto", "reference")
    )
    assert torch.equal(one, two)
    for k in range(4):
        assert float((one[k] - plain[k]).abs().max()) <= 2e-13 * float(plain[k].abs().max())
