"""The norm of one row, as the kernels with norms in them use it.

    y = round(x / sqrt(mean(x²) + eps)) · weight

in float32 but for the rounding, which is to the weight's dtype.
"""

from __future__ import annotations

from loopscope.kernels.language import Value, jit, power_of_two, tl


@jit
def normed_row(values: Value, weight: Value, columns: Value, inside: Value, width: Value, eps: Value) -> Value:
    """A row held in float32; the product with the weight is the caller's to round. Beyond the width all is zero."""
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    rounded = (values * scale).to(weight.dtype.element_ty).to(tl.float32)
    return rounded * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)


def row_block(width: int) -> int:
    """Entries of a row that a program holds: all of them."""
    return power_of_two(width)


def row_warps(width: int) -> int:
    """Warps for a row: sixteen entries a thread, or more in wide rows."""
    return min(16, max(1, row_block(width) // 512))
