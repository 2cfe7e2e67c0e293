"""One streaming pass over a model and its tasks: batches in, records out, resumable, on one machine or many.

`loopscope.measure` is both this room and the function that users call: Python binds a package's name on its parent
as soon as one of its modules is imported, so the room itself answers the call.
"""

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    def __call__(self, model: str, tasks: Any, **settings: Any) -> Any:
        """Measure tasks with a looped model; see `loopscope.measure.run.measure` for the arguments."""
        from loopscope._run import measure

        return measure(model, tasks, **settings)


sys.modules[__name__].__class__ = _Room
