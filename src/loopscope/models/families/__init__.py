"""The model families, one file each; `registry` finds the family of a checkpoint."""
