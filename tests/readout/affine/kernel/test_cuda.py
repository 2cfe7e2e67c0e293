"""The kernels as they are compiled for an accelerator, against FP64; `make test-gpu`.

What the interpreter cannot show: tensor cores that cut off, threads that disagree about a number, contracted products.
"""

from __future__ import annotations

from itertools import pairwise

import mpmath
import pytest
import rows
import torch

from geometry import accuracy_rows, by_name
from loopscope.readout import affine_path, affine_path_from_states
from loopscope.readout.affine.kernel import SCRATCH
from loopscope.readout.affine.path import surveys

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
AT = rows.AT
NODES = [k / 256 for k in range(257)]
WIDTH, VOCABULARY = 2048, 49_152


@pytest.mark.parametrize("vocabulary", [1, 1000, 3000, 49_152, 50_021])
def test_hard_rows(vocabulary):
    hard = rows.hard_rows(max(vocabulary, 1000), "cuda")
    z0, z1 = (torch.stack(each)[:, :vocabulary] for each in zip(*hard.values(), strict=True))
    label = torch.full((len(hard),), min(5, vocabulary - 1), device="cuda")
    rows.check(z0.contiguous(), z1.contiguous(), label)
    for token, name in enumerate(hard):
        here = slice(token, token + 1)
        rows.check(z0[here].contiguous(), z1[here].contiguous(), label[here], name)


@pytest.mark.parametrize(("tokens", "vocabulary"), [(256, VOCABULARY), (131, 50_021)])
def test_no_worse_than_plain_float32(tokens, vocabulary):
    for row in accuracy_rows(torch.device("cuda"), (tokens, WIDTH, vocabulary)):
        for name, (_, ours, theirs) in row.errors.items():
            assert ours <= theirs, (row.name, name, ours, theirs)


@pytest.mark.parametrize("tokens", [1, 5])
def test_a_head_whose_bias_masks_some_entries(states, tokens):
    h, h_plus, weight, bias, targets = states(tokens, 3000, 32, scale=2.0, bias=True, device="cuda")
    bias[::3] = -3.0e38
    targets = targets // 3 * 3 + 1
    ours, exact = (
        affine_path_from_states(h, h_plus, weight, bias, targets, dtype=kind, impl=impl).per_token().survey(21, AT, 2)
        for kind, impl in ((torch.float32, "kernel"), (torch.float64, "reference"))
    )
    found, true = by_name(ours), by_name(exact)
    for name in found:
        torch.testing.assert_close(found[name], true[name], rtol=1e-4, atol=1e-5)


def test_updates_that_follow_one_another_and_repeats(states):
    h, h_plus, weight, _, targets = states(300, VOCABULARY, WIDTH, scale=2.0, device="cuda")
    chain = [h, h_plus]
    while len(chain) < 8:
        chain.append((chain[-1].float() + 0.3 * torch.randn_like(h, dtype=torch.float32)).to(h.dtype))
    paths = [
        affine_path_from_states(*ends, weight, None, targets, dtype=torch.float32, check=False).per_token()
        for ends in pairwise(chain)
    ]
    for one, other in zip(surveys(paths, 21, AT, 2), surveys(paths, 21, AT, 2), strict=True):
        assert torch.equal(one.gains, other.gains)
        assert torch.equal(one.derivatives, other.derivatives)
    for together, path in zip(surveys(paths, 21, AT, 2), paths, strict=True):
        alone = path.survey(21, AT, 2)
        for name, expected in by_name(alone).items():  # the library may multiply other shapes in another order
            torch.testing.assert_close(by_name(together)[name], expected, rtol=1e-5, atol=3e-6)


def test_scratch_is_bounded(states):
    made = states(16_384, VOCABULARY, WIDTH, scale=2.0, device="cuda")
    path = affine_path_from_states(*made, dtype=torch.float32).per_token()
    path.survey(21, (0.0,))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    path.survey(21, (0.0,))
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - held <= SCRATCH + (64 << 20)


def _logits(tokens, vocabulary, size, peak):
    g = torch.Generator("cuda").manual_seed(vocabulary)
    z0 = 7.2 * torch.randn(tokens, vocabulary, generator=g, dtype=torch.float64, device="cuda")
    z0[:, 3] += peak
    v = 5.0 * size + size * torch.randn(tokens, vocabulary, generator=g, dtype=torch.float64, device="cuda")
    return z0, v, torch.randint(vocabulary, (tokens,), generator=g, device="cuda")


@pytest.mark.parametrize("size", [1e-6, 0.05, 2.1, 6.0, 40.0, 400.0])
@pytest.mark.parametrize("peak", [0.0, 40.0, 90.0])
def test_fp64_at_many_scales_is_the_reference(size, peak):
    z0, v, y = _logits(5, 20_011, size, peak)
    y[0] = 3
    path = affine_path(z0, v, y).per_token()
    found = path.derivatives(NODES, 4).stack
    assert path.backends_used == {"kernel"}
    expected = affine_path(z0, v, y, impl="reference").per_token().derivatives(NODES, 4).stack
    torch.testing.assert_close(found[2], expected[2], rtol=2e-12, atol=0.0)
    for k, share in ((0, 5e-13), (1, 5e-13), (3, 5e-13), (4, 2e-12)):  # where they change sign, none keeps its digits
        assert float((found[k] - expected[k]).abs().max()) <= share * float(expected[k].abs().max())


def test_fp64_digits_against_fifty_of_them():
    z0, v, y = _logits(1, 500, 2.1, 0.0)
    found = affine_path(z0, v, y, impl="kernel").derivatives(NODES, 3).stack
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
                assert abs(mpmath.mpf(float(found[m, k])) - number) <= 2e-13 * max(1e-3, abs(float(number))), (m, k)


def test_fp64_from_states_and_again_bit_for_bit():
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
        assert float((one[k] - plain[k]).abs().max()) <= 5e-13 * float(plain[k].abs().max())
