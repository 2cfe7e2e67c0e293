"""The model and the encodings that estimates of several runs have in common: made once, with what that took.

The runs themselves load everything for themselves, so an estimate adds the time that it was spared. Rows are read each
time, as runs do: the first time takes longest.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field

import torch

from loopscope.measuring.model_request import ModelRequest
from loopscope.measuring.plan import Encodings
from loopscope.models.load import find_device
from loopscope.models.protocol import LoopedModel


@dataclass(frozen=True)
class _Kept:
    """The model that was loaded for a request, and in how many seconds."""

    request: ModelRequest
    model: LoopedModel
    seconds: float


@dataclass
class LoadedOnce:
    """The last model that was asked for, and all encodings so far.

    Attributes:
        encodings: of all rows.
        spared: seconds that were not spent because a model was there already.
    """

    encodings: Encodings = field(default_factory=Encodings)
    spared: float = 0.0
    _kept: _Kept | None = None

    def model(self, request: ModelRequest) -> LoopedModel:
        """A model is kept until another one is asked for: two need not fit into memory."""
        wanted = dataclasses.replace(request, needs_tokenizer=True)
        if self._kept is not None and self._kept.request == wanted:
            self.spared += self._kept.seconds
            return self._kept.model
        self._kept = None
        torch.zeros((), device=find_device(request.device))  # a device starts once, whatever is loaded after
        began = time.perf_counter()
        model = request.load()
        self._kept = _Kept(wanted, model, time.perf_counter() - began)
        return model
