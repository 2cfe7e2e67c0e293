"""`LoopscopeCallback`: a monitor inside the Trainer of transformers.

The Trainer shows its callbacks the model, but no batch: held-out questions or a fixed batch are watched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, setting
from loopscope.models.protocol import LoopedModel
from loopscope.monitor.watch import Monitor, Record
from loopscope.monitor.watched import unwrapped

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ImportError:  # the name is there all the same; making one says what is missing

        class TrainerCallback:
            """Stands where that of transformers would."""

            is_missing = True


class LoopscopeCallback(TrainerCallback):
    """Watches the updates of a looped model that a Trainer trains.

    The monitor is made when the training begins, of the model as the Trainer has placed it.

    Attributes:
        monitor: the monitor, once the training has begun.
        last: what it found last.
    """

    def __init__(
        self, data: Any, model: LoopedModel | Callable[[Any], LoopedModel] | None = None, **settings: Any
    ) -> None:
        """What to watch.

        Args:
            data: tasks or a batch, as `Monitor` takes them.
            model: the looped model, where the Trainer's model is not one itself: a function that makes it of the
                Trainer's, `lambda model: ls.loop_layers(model, 2, 5)` say, or the looped model around it.
            settings: the other arguments of `Monitor`. Without `autocast`, that of the Trainer (`bf16`, `fp16`).
        """
        if hasattr(TrainerCallback, "is_missing"):
            raise LoopscopeError("LoopscopeCallback needs transformers: pip install transformers")
        if data is None:
            raise LoopscopeError(f"a Trainer shows its callbacks no batch: give tasks or a batch as {setting('data')}")
        self._data, self._model, self._settings = data, model, settings
        self.monitor: Monitor | None = None
        self.last: Record | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Makes the monitor."""
        given = self._model
        looped = model if given is None else given if hasattr(given, "step") else given(unwrapped(model))
        precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else None
        self.monitor = Monitor(looped, self._data, **{"autocast": precision, **self._settings})

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measures where it is time to."""
        assert self.monitor is not None
        self.last = self.monitor.step(state.global_step) or self.last
