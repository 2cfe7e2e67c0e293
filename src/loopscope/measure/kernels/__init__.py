"""Triton kernels of the measuring pass; the plain code that each replaces says when it is taken."""
