"""The tables of a run directory, one file each."""
