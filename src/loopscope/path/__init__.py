"""Mathematics on φ given numbers (NumPy float64, no torch, no files)."""
