"""The paper's published numbers as data: every table, and the results that only its text gives."""

from loopscope.studies.paper.claims import Claim, claims
from loopscope.studies.paper.printed import Printed
from loopscope.studies.paper.published_numbers import (
    PaperCell,
    PaperRow,
    PaperTable,
    Setting,
    cells,
    measurements,
    number_count,
    tables,
)
from loopscope.studies.paper.quantities import Quantity

__all__ = [
    "Claim",
    "PaperCell",
    "PaperRow",
    "PaperTable",
    "Printed",
    "Quantity",
    "Setting",
    "cells",
    "claims",
    "measurements",
    "number_count",
    "tables",
]
