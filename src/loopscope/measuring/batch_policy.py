"""`BatchPolicy`: how the questions of a work unit are put into batches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from loopscope.errors import LoopscopeError, parse_number, setting, whole
from loopscope.measuring.arguments import MOST_QUESTIONS

_BUDGETS = {"cuda": 65536}
_CPU_BUDGET = 4096


@dataclass(frozen=True)
class BatchPolicy:
    """How the questions of a work unit are put into batches.

    Attributes:
        name: "tokens" (by length, up to a budget of padded tokens), "questions" (source order, a fixed number),
            or "paper" (source order, two questions, natural padding).
        size: questions in a batch; None for "tokens".
        budget: padded tokens in a batch; None unless "tokens".
        padding: "right", or "none" where a model runs the sequences of a batch in one row; None until `on` decides.
    """

    name: Literal["tokens", "questions", "paper"]
    size: int | None = None
    budget: int | None = None
    padding: Literal["right", "none"] | None = None

    @classmethod
    def parse(cls, given: str | int) -> BatchPolicy:
        """`auto`, `paper` or a number of questions.

        >>> BatchPolicy.parse("8")
        BatchPolicy(name='questions', size=8, budget=None, padding=None)
        """
        if given == "auto":
            return cls("tokens", budget=_CPU_BUDGET)
        if given == "paper":
            return cls("paper", size=2)
        size = parse_number(given) if isinstance(given, str) else given
        if size is None:
            raise LoopscopeError(
                f"{setting('batch_size', given)} is not a number of questions: give one up to {MOST_QUESTIONS:,},"
                " `auto` or `paper`"
            )
        return cls("questions", size=whole("batch_size", size, 1, MOST_QUESTIONS))

    def on(self, device_type: str, *, unpadded: bool = False) -> BatchPolicy:
        """The same policy as it suits a kind of device and a model that may run without padding.

        The paper's batches are padded, and what was padded once stays so.
        """
        none = unpadded and self.name != "paper" and self.padding != "right"
        budget = None if self.budget is None else _BUDGETS.get(device_type, _CPU_BUDGET)
        return dataclasses.replace(self, budget=budget, padding="none" if none else "right")
