"""Taylor mode: truncated power series through plain torch code, to any order, without a Hessian."""

from loopscope.readout.general.taylor import (
    activations,
    attention,
    conversions,
    elementwise,
    normalise,
    piecewise,
    products,
    reductions,
    structural,
    whole_layers,
    writing,
)
from loopscope.readout.general.taylor.core import KINKS, MissingRuleError, Series, operations

__all__ = [
    "KINKS",
    "MissingRuleError",
    "Series",
    "activations",
    "attention",
    "conversions",
    "elementwise",
    "normalise",
    "operations",
    "piecewise",
    "products",
    "reductions",
    "structural",
    "whole_layers",
    "writing",
]
