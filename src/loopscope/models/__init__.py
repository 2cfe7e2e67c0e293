"""Looped language models: embed, step, readout."""
