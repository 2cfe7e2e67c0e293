"""When to stop and how far to step: policies, what they see, what they cost, and how they compare at equal cost."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from loopscope.control.policy import Decision, Policy, Seen, Stepper
from loopscope.control.rules import ThresholdRule

__all__ = ["Decision", "Policy", "Seen", "Stepper", "ThresholdRule"]


class _Callable(ModuleType):
    """`loopscope.control(runs)` compares policies, also once this package, whose name it shares, was imported."""

    def __call__(self, *runs: Any, **settings: Any) -> Any:
        return import_module("loopscope.control_runs").control(*runs, **settings)


sys.modules[__name__].__class__ = _Callable
