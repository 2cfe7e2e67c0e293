"""A model tried on a batch of three short rows: its states and logits, and whether two ways to compute them agree.

What is tried is in `probes`. Differences are relative to the largest number of what was expected.

Shapes: B rows, S positions, D hidden width, V vocabulary, N selected positions.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.models.batch import Batch
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk
from loopscope.readout.affine.sources import full_precision_products

LENGTHS = (6, 4, 5)
"""Tokens of the rows that a model is tried on."""
PROMPT = 2
"""How many of them are the prompt."""
DEEPEST = 2
"""Steps that are tried; no more than the model was trained for."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""How far two ways may differ, by the arithmetic of the states."""
COARSE = 5e-2
"""The same in 16 bits."""


class Verdict(NamedTuple):
    """What one probe found.

    Attributes:
        check: its name.
        passed: None where it does not apply.
        found: what was seen, in words.
        remedy: what to do where it did not pass.
    """

    check: str
    passed: bool | None
    found: str
    remedy: str = ""


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest deviation, relative to the largest number expected; not finite where either is not."""
    if found.shape != expected.shape:
        return float("inf")
    scale = max(float(expected.double().abs().max()), 1e-12)
    return float((found.double() - expected.double()).abs().max()) / scale


class Trial:
    """A model and a small batch: rows of several lengths, states to a small depth, logits."""

    def __init__(self, model: LoopedModel) -> None:
        self.model = model
        limit = getattr(model, "max_positions", None) or max(LENGTHS)
        self.lengths = [min(length, limit) for length in LENGTHS]
        vocabulary = model.vocabulary_size
        stride = max(1, vocabulary // 7)
        self.rows = [[(k * stride + row + 1) % vocabulary for k in range(n)] for row, n in enumerate(self.lengths)]
        self.depth = max(1, min(DEEPEST, model.trained_depth or DEEPEST))

    @property
    def tolerance(self) -> float:
        """How far apart two ways of computing the same may be."""
        return TOLERANCE.get(self.model.dtype, COARSE)

    def batch(self, rows: list[list[int]] | None = None, first: int = 0) -> Batch:
        """Rows as a batch; `first` is the number of the first of them, which seeds a drawn state."""
        rows = self.rows if rows is None else rows
        made = Batch.from_rows(rows, source_rows=list(range(first, first + len(rows))))
        prompts = torch.tensor([min(PROMPT, len(row) - 1) for row in rows])
        return dataclasses.replace(made, prompt_lengths=prompts).to(self.model.device)

    def walked(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        """The states at every depth, and the logits at the last."""
        walk = Walk.of(self.model, batch)
        states = [walk.state, *(walk.advance() for _ in range(self.depth))]
        return states, self.read(walk)

    def read(self, walk: Walk, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Logits without TF32."""
        with full_precision_products():
            return walk.read(positions, dtype)

    @cached_property
    def walk(self) -> Walk:
        """The batch at its last depth."""
        return Walk.of(self.model, self.batch()).to(self.depth)

    @cached_property
    def states(self) -> list[Tensor]:
        """The states at every depth."""
        return self.walked(self.batch())[0]

    @cached_property
    def logits(self) -> Tensor:
        """The logits at the last depth, [B, S, V]."""
        return self.read(self.walk)

    @cached_property
    def places(self) -> Tensor:
        """Every position whose logits predict a token that is there, [N, 2], not in order."""
        found = [(row, place) for row, length in enumerate(self.lengths) for place in range(length - 1)]
        return torch.tensor(found[::-1], device=self.model.device)

    def valid(self, batched: Tensor) -> Tensor:
        """What stands at valid positions, row after row."""
        return torch.cat([batched[row, :length] for row, length in enumerate(self.lengths)])

    def agree(
        self, check: str, pairs: dict[str, tuple[Tensor, Tensor]], remedy: str, *, exact: bool = False
    ) -> Verdict:
        """The verdict on pairs of found and expected, by what they are."""
        tolerance = 0.0 if exact and self.model.device.type == "cpu" else self.tolerance
        gaps = {what: difference(*pair) for what, pair in pairs.items()}
        for what, gap in gaps.items():
            if not gap <= tolerance:
                return Verdict(check, False, f"{what} differ by {gap:.2g}", remedy)
        worst = max(gaps.values())
        return Verdict(check, True, "the same to the bit" if worst == 0.0 else f"the same to {worst:.1g}")
