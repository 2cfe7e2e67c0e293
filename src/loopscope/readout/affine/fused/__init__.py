"""An update's geometry straight from two BF16 states and a BF16 head, in Triton: no logit is ever written.

A product of two BF16 numbers is exact in FP32, so both logit products are tensor-core products with FP32
accumulation, and nothing is lost against FP32 matrices. `sweep` holds the kernel that multiplies a tile of the head
with both states and reduces it at once, `merge` the one that adds up the splits of the vocabulary in float64 and
in a fixed order, `logits` the reference labels' own logits and what tensor cores lose, `path` what the host does.
"""
