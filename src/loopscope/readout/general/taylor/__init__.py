"""Taylor mode: truncated power series through plain torch code, to any order, without a Hessian."""

from loopscope.readout.general.taylor import attention, elementwise, layers, structural
from loopscope.readout.general.taylor.core import Series

__all__ = ["Series", "attention", "elementwise", "layers", "structural"]
