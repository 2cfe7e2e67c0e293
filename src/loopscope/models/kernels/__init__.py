"""Fused kernels for inference on a GPU: one operation a file, written in Triton.

Nothing here imports Triton until a kernel is launched, and every kernel has the plain torch code it replaces, with
the same order of rounding, in the module that calls it. `loopscope.kernels.choice` says which of the two runs.
"""
