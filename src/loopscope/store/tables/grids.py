"""The scales at which the list columns are sampled (Section 4.1 and Appendix D of the paper)."""

GRID: tuple[float, ...] = tuple(index / 20 for index in range(21))
"""The 21-point grid {0, 0.05, …, 1}; its every fifth point is the five-point action set."""

CURVATURE_SCALES: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The scales at which curvature along the path is stored, and the five-point action set itself."""

PATH_NODES = 257
"""The number of nodes of a stored FP64 path: 256 cells."""

DIFFERENCE_SPACINGS: tuple[float, ...] = (0.01, 0.005, 0.0025)
"""The spacings at which φ''' is checked against central differences of φ''."""
