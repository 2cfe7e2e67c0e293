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
from loopscope.measuring.probes import ALL, BASIS, Probe, Trial, Verdict, verdict_of
from loopscope.models.in_memory import ModelSpec, borrowed
from loopscope.models.protocol import LoopedModel

if TYPE_CHECKING:
    import polars as pl

_WORDS = {True: "passed", False: "failed", None: "not needed"}
_COLUMNS = ("check", "verdict", "found", "remedy")


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
    def _failed(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.passed is False]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self._failed

    def require(self) -> None:
        """Refuse a model that failed a check."""
        for failed in self._failed:
            raise LoopscopeError(
                f"{self.model} fails the check {failed.check!r}: {failed.found}; {failed.remedy} "
                f"(loopscope.check(model) shows all checks)"
            )

    def to_polars(self) -> pl.DataFrame:
        """One row per check."""
        import polars as pl

        rows = [(check, _WORDS[passed], *others) for check, passed, *others in self.verdicts]
        return pl.DataFrame(rows, schema=dict.fromkeys(_COLUMNS, pl.String), orient="row")

    def __str__(self) -> str:
        lines = [self._summary()]
        for check, passed, found, remedy in self.verdicts:
            lines.append(f"  {check:<16} {_WORDS[passed]:<11} {found}")
            if passed is False:
                lines.append(f"  {'':<16} {'remedy:':<11} {remedy}")
        return "\n".join(lines)

    __repr__ = __str__

    def _summary(self) -> str:
        if self.passed:
            return f"{self.model}: {len(self.verdicts)} checks, none failed"
        others = f"; {self.untried} others rest on them and were not tried" if self.untried else ""
        return f"{self.model}: {len(self._failed)} of {len(self.verdicts)} checks failed{others}"

    def _repr_html_(self) -> str:
        styles = {True: None, False: "color:#d55e00;font-weight:bold", None: "opacity:.7"}
        lines = [
            [check, element("span", _WORDS[passed], style=styles[passed]), *others]
            for check, passed, *others in self.verdicts
        ]
        return element("div", element("div", self._summary()), html_table(_COLUMNS, lines))


def check(
    model: ModelSpec,
    *,
    model_args: Mapping[str, Any] | str | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
) -> ModelCheck:
    """Try a model on a small batch, in every way that measuring relies on; nothing is stored.

    Eight checks: shapes, finite states, determinism, whether the step depends on its depth, independence of padding and
    of other rows, readout against positions and head, the readout's gradient (in Taylor mode, by nested forward mode
    and by differences), and generation with kept keys and values.

    Args:
        model: as in `measure`.
        model_args: as in `measure`.
        device: as in `measure`.
        dtype: as in `measure`.

    Raises:
        LoopscopeError: the model cannot be loaded. What a check finds is in the result.
    """
    from loopscope.measuring.config import MeasureConfig
    from loopscope.measuring.loading import in_memory, load_configured_model

    config = MeasureConfig(model=model, tasks=(), model_args=model_args, device=device, dtype=dtype)
    with borrowed(in_memory(config)):
        return checked(load_configured_model(config), ALL)


@torch.no_grad()
def checked(model: LoopedModel, probes: tuple[Probe, ...] = ALL) -> ModelCheck:
    """The verdicts on a loaded model; the others only where those that they rest on pass."""
    trial, verdicts = Trial(model), list[Verdict]()
    for probe in probes:
        if all(found.passed for found in verdicts[: len(BASIS)]):
            verdicts.append(verdict_of(probe, trial))
    return ModelCheck(model.name, tuple(verdicts), len(probes) - len(verdicts))
