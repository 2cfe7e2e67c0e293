"""Triton for the rooms that have kernels: its language with types, the launch, and the choice of implementation."""
