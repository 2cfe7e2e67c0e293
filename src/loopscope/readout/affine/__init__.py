"""Paths through an affine head (Appendix C): closed form, by one of the ways that `choose` lists."""
