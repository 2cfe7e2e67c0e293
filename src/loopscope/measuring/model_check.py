"""`check`: whether a model holds what its numbers rest on, as a table of verdicts with remedies.

`measure` runs the quick part before any model that is not loopscope's own and refuses what would give wrong numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from loopscope.display import element, html_table
from loopscope.errors import LoopscopeError
from loopscope.measuring.model_trial import Trial, Verdict
from loopscope.measuring.probes import BASIS, FURTHER, QUICK, Probe, tried
from loopscope.models.in_memory import ModelSpec, borrowed
from loopscope.models.protocol import LoopedModel

if TYPE_CHECKING:
    import polars as pl

_WORDS = {True: "passed", False: "failed", None: "not needed"}


@dataclass(frozen=True)
class ModelCheck:
    """What was found of a model.

    Attributes:
        model: its name.
        verdicts: one for each check, in order.
        untried: checks that were left out, because they take for granted what failed.
    """

    model: str
    verdicts: tuple[Verdict, ...]
    untried: int = 0

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not any(verdict.passed is False for verdict in self.verdicts)

    def require(self) -> None:
        """Refuse a model that failed a check."""
        failed = next((verdict for verdict in self.verdicts if verdict.passed is False), None)
        if failed is not None:
            raise LoopscopeError(
                f"{self.model} fails the check {failed.check!r}: {failed.found}; {failed.remedy} "
                f"(loopscope.check(model) shows all checks)"
            )

    def to_polars(self) -> pl.DataFrame:
        """One row per check."""
        import polars as pl

        rows = [
            {"check": v.check, "verdict": _WORDS[v.passed], "found": v.found, "remedy": v.remedy} for v in self.verdicts
        ]
        return pl.DataFrame(rows, schema=dict.fromkeys(("check", "verdict", "found", "remedy"), pl.String))

    def __str__(self) -> str:
        lines = [f"{self.model}: {self._summary()}"]
        for verdict in self.verdicts:
            lines.append(f"  {verdict.check:<16} {_WORDS[verdict.passed]:<11} {verdict.found}")
            if verdict.passed is False:
                lines.append(f"  {'':<16} {'remedy:':<11} {verdict.remedy}")
        return "\n".join(lines)

    __repr__ = __str__

    def _summary(self) -> str:
        failed = sum(verdict.passed is False for verdict in self.verdicts)
        if not failed:
            return f"{len(self.verdicts)} checks, none failed"
        others = f"; {self.untried} others rest on them and were not tried" if self.untried else ""
        return f"{failed} of {len(self.verdicts)} checks failed{others}"

    def _repr_html_(self) -> str:
        colours = {True: None, False: "color:#d55e00;font-weight:bold", None: "opacity:.7"}
        lines = [
            [v.check, element("span", _WORDS[v.passed], style=colours[v.passed]), v.found, v.remedy]
            for v in self.verdicts
        ]
        table = html_table(("check", "verdict", "found", "remedy"), lines)
        return element("div", element("div", f"{self.model}: {self._summary()}"), table)


def check(
    model: ModelSpec,
    *,
    model_args: Mapping[str, Any] | str | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
) -> ModelCheck:
    """Try a model on a small batch, in every way that measuring relies on; nothing is stored.

    Head against readout, padding, rows alone and in another order, causality, positions, float64, gradients,
    repeatability, state kept from call to call, options that share a row, and derivatives in Taylor mode against nested
    forward mode and differences.

    Args:
        model: as in `measure`.
        model_args: as in `measure`.
        device: as in `measure`.
        dtype: as in `measure`.

    Raises:
        LoopscopeError: the model cannot be loaded. What a check finds is in the result.
    """
    from loopscope.measuring.model_request import ModelRequest
    from loopscope.models.user_models import model_arguments

    named = None if dtype is None else str(dtype).removeprefix("torch.")
    request = ModelRequest.of(model, str(device), named, args=model_arguments(model_args))
    with borrowed(request.given):
        return checked(request.load(), (*QUICK, *FURTHER))


@torch.no_grad()
def checked(model: LoopedModel, probes: tuple[Probe, ...] = QUICK) -> ModelCheck:
    """The verdicts on a loaded model; where it does not run at all, that one alone."""
    try:
        trial = Trial(model)
        first = probes[0](trial)
    except Exception as error:  # whatever the model's own code raises
        said = " ".join(str(error).split())
        told = said if isinstance(error, LoopscopeError) else f"{type(error).__name__}: {said}"
        remedy = "make embed(batch), step(state, context) and readout(state, positions, dtype) run on three short rows"
        return ModelCheck(model.name, (Verdict("runs", False, told, remedy),), len(probes))
    verdicts = [first]
    if first.passed:
        verdicts += [tried(probe, trial) for probe in BASIS[1:]]
    if all(verdict.passed for verdict in verdicts):
        verdicts += [tried(probe, trial) for probe in probes[len(BASIS) :]]
    return ModelCheck(model.name, tuple(verdicts), len(probes) - len(verdicts))
