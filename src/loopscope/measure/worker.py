"""One model replica that measures work units: questions in, columns of every table out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from loopscope._errors import LoopscopeError
from loopscope.measure.batches import Question, padded_tokens, plan_batches, shrunk
from loopscope.measure.columns import stacked
from loopscope.measure.examples import example_columns
from loopscope.measure.memory import is_out_of_memory, release
from loopscope.measure.settings import Settings
from loopscope.measure.trip import Tables, Trip
from loopscope.models.protocol import LoopedModel


class Worker:
    """Measures the questions of a unit with one model.

    A batch that does not fit into memory is halved, and no later batch of this worker is larger than what is left.
    """

    def __init__(self, model: LoopedModel, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._ceiling: int | None = None
        self._notices: list[str] = []

    def notices(self) -> list[str]:
        """What there was to say since the last call."""
        said, self._notices = self._notices, []
        return said

    def measure(self, questions: Sequence[Question]) -> Tables:
        """The tables of one unit; the order of their rows does not matter."""
        waiting = deque(shrunk(plan_batches(questions, self._settings.batch), self._ceiling))
        parts: list[Tables] = []
        while waiting:
            tables = self._attempt(waiting[0])
            if tables is None:
                waiting = deque(shrunk(waiting, self._ceiling))
                continue
            waiting.popleft()
            if self._settings.transitions:
                tables["questions"]["batch"] = np.full(len(tables["questions"]["row"]), len(parts))
            parts.append(tables)
        joined = {name: stacked([part[name] for part in parts]) for name in parts[0]}
        joined["examples"] = example_columns(questions)
        return joined

    def _attempt(self, batch: Sequence[Question]) -> Tables | None:
        """The tables of a batch, or None when it did not fit and smaller ones are to be tried."""
        try:
            return Trip(self._model, self._settings, batch).run()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler: the traceback no longer keeps the tensors of the failed attempt alive.
        release()
        if len(batch) == 1:
            raise LoopscopeError(
                f"question {batch[0].example.id} alone does not fit into memory: use a larger device,"
                " --dtype bfloat16 or a lower --level, or choose other questions with --ids"
            )
        tokens = padded_tokens(batch)
        self._ceiling = tokens // 2
        self._notices.append(
            f"out of memory with {len(batch)} questions ({tokens} padded tokens) in a batch:"
            f" going on with at most {self._ceiling} padded tokens"
        )
        return None
