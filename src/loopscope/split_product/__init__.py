"""float32 activations times a BF16 matrix on tensor cores: as right as a float32 product, several times as fast.

A float32 number is exactly the sum of three BF16 numbers (`parts`), and the product of two BF16 numbers is exact in
float32. So x Wᵀ = lo Wᵀ + mid Wᵀ + hi Wᵀ takes three products that tensor cores do with float32 sums, and the matrix is
read as it is stored: no float32 copy of it exists.
"""

from loopscope.split_product.linear import is_mixed, mixed_linear, splits_apply
from loopscope.split_product.parts import split

__all__ = ["is_mixed", "mixed_linear", "split", "splits_apply"]
