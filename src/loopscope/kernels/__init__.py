"""Triton below models and readout: its language, which implementation of an operation runs, and split products."""
