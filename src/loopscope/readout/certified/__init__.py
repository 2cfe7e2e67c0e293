"""Enclosures of φ and its derivatives under an affine head that no rounding can leave, and the verdicts they allow."""
