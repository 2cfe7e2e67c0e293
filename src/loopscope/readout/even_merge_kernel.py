"""The pairwise formulas of `moments.merge_moments` for Triton: moments of the union of two parts of the vocabulary."""

from __future__ import annotations

from typing import Any

from loopscope.triton_kernels.language import Value, jit, tl


@jit
def merge_states(
    z_a: Value,
    v_a: Value,
    others_a: Value,
    mean_a: Value,
    slope_a: Value,
    second_a: Value,
    third_a: Value,
    fourth_a: Value,
    z_b: Value,
    v_b: Value,
    others_b: Value,
    mean_b: Value,
    slope_b: Value,
    second_b: Value,
    third_b: Value,
    fourth_b: Value,
    alpha: Value,
) -> Any:
    """Logit and displacement of the likeliest entry, mass of the others, mean, slope and three central sums."""
    gap = (z_b - z_a) + alpha * (v_b - v_a)
    b_leads = gap > 0.0
    factor = tl.exp(-tl.abs(gap))
    factor_a = tl.where(b_leads, factor, 1.0)
    factor_b = tl.where(b_leads, 1.0, factor)
    mass_a = factor_a * (1.0 + others_a)
    mass_b = factor_b * (1.0 + others_b)
    others = tl.where(b_leads, others_b + mass_a, others_a + mass_b)
    mass = 1.0 + others
    share_a = mass_a / mass
    share_b = mass_b / mass
    delta = (v_b - v_a) + (mean_b - mean_a)
    mean = tl.where(b_leads, mean_b - delta * share_a, mean_a + delta * share_b)
    pair = mass_a * share_b
    square = delta * delta
    second_a = factor_a * second_a
    second_b = factor_b * second_b
    third_a = factor_a * third_a
    third_b = factor_b * third_b
    fourth = factor_a * fourth_a + factor_b * fourth_b
    fourth += square * square * pair * (share_a * share_a - share_a * share_b + share_b * share_b)
    fourth += 6.0 * square * (share_a * share_a * second_b + share_b * share_b * second_a)
    fourth += 4.0 * delta * (share_a * third_b - share_b * third_a)
    third = third_a + third_b + square * delta * pair * (share_a - share_b)
    third += 3.0 * delta * (share_a * second_b - share_b * second_a)
    second = second_a + second_b + square * pair
    slope = factor_a * slope_a + factor_b * slope_b
    z = tl.where(b_leads, z_b, z_a)
    v = tl.where(b_leads, v_b, v_a)
    return z, v, others, mean, slope, second, third, fourth
