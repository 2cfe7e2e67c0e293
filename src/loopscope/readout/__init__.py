"""φ and its derivatives from states: closed form for an affine head, Taylor mode through any other readout."""

from loopscope.readout.affine import AffinePath, affine_path, affine_path_from_states

__all__ = ["AffinePath", "affine_path", "affine_path_from_states"]
