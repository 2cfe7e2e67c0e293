"""The tables, by what they are about; importing this package declares all of them."""

from loopscope.studies.tables import (
    checks,
    control,
    depths,
    families,
    fp64,
    interventions,
    mechanism,
    scales,
    tokens,
    training,
)

__all__ = [
    "checks",
    "control",
    "depths",
    "families",
    "fp64",
    "interventions",
    "mechanism",
    "scales",
    "tokens",
    "training",
]
