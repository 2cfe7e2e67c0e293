"""How fast, how small and how accurate: every figure with its reference measured in the same run.

`loopscope bench` and `python -m loopscope.bench` are the same; the second needs torch and NumPy only.
"""
