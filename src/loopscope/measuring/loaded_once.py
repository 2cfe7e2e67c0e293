"""Models, rows and encodings that estimates of several runs have in common: loaded once, with what that took.

The runs themselves load everything for themselves, so an estimate adds the time that it was spared.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from loopscope.measuring.data_request import DataRequest
from loopscope.measuring.model_request import ModelRequest
from loopscope.measuring.plan import Encodings
from loopscope.models.protocol import LoopedModel
from loopscope.tasks.encoding import LoadedTask

Made = TypeVar("Made")


@dataclass(frozen=True)
class _Kept:
    """What was made for a request, and in how many seconds."""

    request: object
    made: Any
    seconds: float


@dataclass
class LoadedOnce:
    """The last model that was asked for, and all rows and encodings so far.

    Attributes:
        encodings: of all rows.
        spared: seconds that were not spent because a model or rows were there already.
    """

    encodings: Encodings = field(default_factory=Encodings)
    spared: float = 0.0
    _models: list[_Kept] = field(default_factory=list)
    _rows: list[_Kept] = field(default_factory=list)

    def model(self, request: ModelRequest) -> LoopedModel:
        """A model is kept until another one is asked for: two need not fit into memory."""
        wanted = dataclasses.replace(request, needs_tokenizer=True)
        if self._models and self._models[0].request != wanted:
            self._models.clear()
        return self._once(self._models, wanted, request.load)

    def rows(self, request: DataRequest) -> Sequence[LoadedTask]:
        """The tasks of a request, in order."""
        return self._once(self._rows, request, request.load)

    def _once(self, kept: list[_Kept], request: object, make: Callable[[], Made]) -> Made:
        for known in kept:
            if known.request == request:
                self.spared += known.seconds
                found: Made = known.made
                return found
        began = time.perf_counter()
        made = make()
        kept.append(_Kept(request, made, time.perf_counter() - began))
        return made
