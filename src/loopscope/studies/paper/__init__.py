"""The paper's published numbers as data: every table, and the results that only its text gives."""

from loopscope.studies.paper.published_numbers import (
    PaperCell,
    PaperRow,
    PaperTable,
    Printed,
    Setting,
    cells,
    measurements,
    number_count,
    tables,
)

__all__ = [
    "PaperCell",
    "PaperRow",
    "PaperTable",
    "Printed",
    "Setting",
    "cells",
    "measurements",
    "number_count",
    "tables",
]
