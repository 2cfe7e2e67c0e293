"""Taylor mode: truncated power series through plain torch code, to any order, without a Hessian."""

from loopscope.readout.taylor import attention, blocks, elementwise, linear, normalise, structural
from loopscope.readout.taylor.core import Series

__all__ = ["Series", "attention", "blocks", "elementwise", "linear", "normalise", "structural"]
