"""What each update of a looped model does while it is trained: `Monitor`, and a callback for the Trainer."""

from typing import TYPE_CHECKING, Any

from loopscope.monitor.watch import Monitor, Record

if TYPE_CHECKING:
    from loopscope.monitor.trainer_callback import LoopscopeCallback

__all__ = ["LoopscopeCallback", "Monitor", "Record"]


def __getattr__(name: str) -> Any:
    """The callback comes with transformers, which is imported when it is asked for."""
    if name == "LoopscopeCallback":
        from loopscope.monitor.trainer_callback import LoopscopeCallback

        return LoopscopeCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
