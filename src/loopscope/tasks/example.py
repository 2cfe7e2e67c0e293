"""What a model is asked: token ids, the positions whose logits are scored, and their targets.

A prediction position p is the place whose logits predict token p + 1. Only tokens of the solution or of an
option are predicted; the prompt is context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from loopscope._errors import LoopscopeError

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Sequence:
    """One token sequence with what is scored in it; `targets[i]` is the token after `positions[i]`."""

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    targets: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.positions:
            raise LoopscopeError("a sequence has no token to predict: give the solution or option some text")
        for position, target in zip(self.positions, self.targets, strict=True):
            if not 0 <= position < len(self.token_ids) - 1 or self.token_ids[position + 1] != target:
                raise ValueError(f"position {position} does not predict token {target}")


@dataclass(frozen=True, slots=True)
class Row:
    """One question as text, before any tokenizer: a solution, or options with the right one's index.

    `context` ends where the scored text begins; `continuations` holds the one solution or the K options.
    """

    id: str
    source_row: int
    context: str
    continuations: tuple[str, ...]
    answer: int | None = None
    metadata: Mapping[str, Scalar] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Example:
    """One encoded question: one sequence for a reference solution, K for the options of a choice."""

    id: str
    source_row: int
    prompt: str
    sequences: tuple[Sequence, ...]
    answer: int | None = None
    metadata: Mapping[str, Scalar] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if self.answer is not None and not 0 <= self.answer < len(self.sequences):
            raise LoopscopeError(
                f"{self.id}: the answer index {self.answer} is not one of its {len(self.sequences)} options"
            )

    @property
    def prediction_count(self) -> int:
        """How many tokens are scored, over all sequences."""
        return sum(len(sequence.positions) for sequence in self.sequences)
