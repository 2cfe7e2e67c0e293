"""What the layers of the model families are made of; `kernels` has the Triton versions."""
