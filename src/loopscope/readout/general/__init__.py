"""Paths through any smooth readout: Taylor mode, or nested forward mode where it has no rule."""
