"""When to stop, how far to step, where to read: policies, what they see, what they cost, their comparison."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from loopscope.control.policies import (
    Decision,
    FixedDepth,
    FixedScale,
    MarginScaled,
    Policy,
    ScaledReadout,
    Taps,
    ThresholdRule,
)

__all__ = ["Decision", "FixedDepth", "FixedScale", "MarginScaled", "Policy", "ScaledReadout", "Taps", "ThresholdRule"]


class _Callable(ModuleType):
    """`loopscope.control(runs)` compares policies, also once this package, whose name it shares, was imported."""

    def __call__(self, *runs: Any, **settings: Any) -> Any:
        return import_module("loopscope.control.runs").control(*runs, **settings)


sys.modules[__name__].__class__ = _Callable
