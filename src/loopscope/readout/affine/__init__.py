"""Paths through an affine head (Appendix C): closed form, by one of the back ends that `path` lists."""
