"""What certificates assume of the arithmetic at hand: rounding, subnormals, exp and log, full-precision products."""

import math

import numpy as np
import pytest
import torch
from flint import arb, ctx

from loopscope.errors import LoopscopeError
from loopscope.readout.certified import intervals
from loopscope.readout.certified.balls import exact_products
from loopscope.readout.certified.intervals import ULPS, Interval, require_arithmetic
from loopscope.readout.certified.tokens import product

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_CUDA])]
FUNCTIONS = {"exp": torch.exp, "expm1": torch.expm1, "log": torch.log, "log1p": torch.log1p}
SMALLEST_NORMAL = 2.0**-1022


def arguments(name: str) -> torch.Tensor:
    """Points over the whole domain of a function: random, near its root, near overflow and underflow, and the ends."""
    chance = np.random.default_rng(5)
    tiny = np.concatenate([sign * 10.0 ** chance.uniform(-308, 0, 2000) for sign in (1, -1)])
    if name == "log":
        found = np.concatenate([10.0 ** chance.uniform(-307, 308, 4000), 1 + tiny[np.abs(tiny) < 0.5], [1.0]])
    elif name == "log1p":
        found = np.concatenate([tiny[tiny > -1], 10.0 ** chance.uniform(0, 308, 2000), [0.0, -1 + 2.0**-53]])
    else:
        wide = chance.uniform(-745, 709.7, 4000)
        found = np.concatenate([wide, chance.uniform(-40, 40, 4000), tiny, [0.0, 709.78, -708.4, -744.0, -745.13]])
    return torch.from_numpy(found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_within_the_assumed_units_of_the_last_place(name: str, device: str):
    x = arguments(name)
    found = FUNCTIONS[name](x.to(device)).cpu().tolist()
    with ctx.workprec(200):
        for argument, value in zip(x.tolist(), found, strict=True):
            exact = getattr(arb(argument), name)()
            allowed = ULPS * math.ulp(max(abs(float(exact.mid())), SMALLEST_NORMAL))
            if abs(float(exact.mid())) < 4 * SMALLEST_NORMAL:
                allowed = 2.0**-1021
            assert abs(arb(value) - exact) <= allowed, (argument, value, exact)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_intervals_of_functions_hold_the_exact_value(name: str, device: str):
    x = arguments(name)
    found = getattr(Interval.point(x.to(device)), name)()
    with ctx.workprec(200):
        for argument, low, high in zip(x.tolist(), found.low.tolist(), found.high.tolist(), strict=True):
            exact = getattr(arb(argument), name)()
            assert arb(low) <= exact, (argument, low, exact)
            assert high == math.inf or exact <= arb(high), (argument, high, exact)


@pytest.mark.parametrize("device", DEVICES)
def test_functions_at_the_ends_of_the_line(device: str):
    far = torch.tensor([-math.inf, -1e300, 1e300, math.inf], dtype=torch.float64, device=device)
    assert torch.exp(far).tolist() == [0.0, 0.0, math.inf, math.inf]
    assert torch.expm1(far).tolist() == [-1.0, -1.0, math.inf, math.inf]
    whole = Interval.point(far).exp()
    assert whole.low[:2].tolist() == [0.0, 0.0]
    assert (whole.high[:2] > 0).all()
    assert whole.high[2:].tolist() == [math.inf, math.inf]


@pytest.mark.parametrize("device", DEVICES)
def test_the_arithmetic_is_the_assumed_one(device: str):
    require_arithmetic(device)


def test_another_arithmetic_is_refused():
    require_arithmetic.cache_clear()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot drop subnormals")
    try:
        with pytest.raises(LoopscopeError, match="drops subnormals"):
            require_arithmetic("cpu")
    finally:
        torch.set_flush_denormal(False)
    require_arithmetic("cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_of_stored_numbers_are_exact(device: str, dtype: torch.dtype):
    torch.manual_seed(3)
    a, b = (torch.randn(20_000).mul(10).to(dtype) for _ in range(2))
    found = (a.to(device).double() * b.to(device).double()).cpu()
    exact = [arb(x) * arb(y) for x, y in zip(a.double().tolist(), b.double().tolist(), strict=True)]
    assert all(arb(value) == true for value, true in zip(found.tolist(), exact, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tf32", [False, True])
def test_matrix_products_keep_their_bound_whatever_the_process_allows(device: str, tf32: bool):
    """FP64 products are full FP64: each error is within γ_n Σ|a||b|, which TF32 or a short accumulator would break."""
    torch.manual_seed(4)
    a, w = torch.randn(7, 2048), torch.randn(129, 2048)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        found = product(a.to(device).double(), w.to(device).double()).cpu()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    parts = exact_products(a.to(device), w.to(device)).parts
    assert len(parts) > 1
    size = a.double().abs() @ w.double().abs().T
    bound = intervals.gamma(256 + 8 + 4)
    with ctx.workprec(200):
        for i in range(7):
            for j in range(129):
                exact = sum((arb(part[i, j].item()) for part in parts), arb(0))
                assert abs(arb(found[i, j].item()) - exact) <= bound * size[i, j].item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_exact_products_are_exact(device: str, dtype: torch.dtype):
    torch.manual_seed(5)
    spread = 10.0 ** torch.randint(-6, 6, (3, 300)).double()
    a, w = (torch.randn(3, 300).double() * spread).to(dtype), torch.randn(5, 300).double().to(dtype)
    found = exact_products(a.to(device), w.to(device))
    with ctx.workprec(2000):
        for i in range(3):
            for j in range(5):
                pairs = zip(a[i].double().tolist(), w[j].double().tolist(), strict=True)
                true = sum((arb(x) * arb(y) for x, y in pairs), arb(0))
                ours = sum((arb(part[i, j].item()) for part in found.parts), arb(0))
                assert abs(true - ours) <= found.rest_t[i]
    assert dtype == torch.float64 or found.rest_t == [0.0] * 3
