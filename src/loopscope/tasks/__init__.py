"""Benchmark rows, prompt text, tokenisation, reference positions."""
