"""`paths`: φ and three derivatives at the 257 nodes of the FP64 analysis, on request (Appendix E.5)."""

from loopscope.path.grids import PATH_NODES
from loopscope.store.columns import Column, ColumnType, Table
from loopscope.store.levels import Level
from loopscope.store.tables.keys import IDENTITY, TRANSITION


def _nodes(name: str, unit: str, meaning: str) -> Column:
    return Column(name, ColumnType.FLOAT64_LIST, unit, meaning, Level.FULL, length=PATH_NODES)


PATHS = Table(
    name="paths",
    per="example and transition",
    key=("row", "transition"),
    columns=(
        *IDENTITY,
        TRANSITION,
        _nodes("alpha", "scale", "the nodes, increasing from 0 to 1"),
        _nodes("gain", "nats", "φ at the nodes"),
        _nodes("slope", "nats", "φ' at the nodes"),
        _nodes("curvature", "nats", "φ'' at the nodes"),
        _nodes("third", "nats", "φ''' at the nodes"),
    ),
)
