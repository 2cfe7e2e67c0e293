"""The model families, one file each; `detect` tells which of them a checkpoint belongs to."""
