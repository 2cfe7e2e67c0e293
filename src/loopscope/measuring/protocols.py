"""The two protocols of `measure`: what each sets where the caller gives nothing, and what it stores.

`loopscope` is the default. `paper` follows the paper's text; where it names a choice, the line of the table says so.
A setting that the caller gives stands above the protocol's. The name belongs to a run's identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, choice, setting, shown, text

if TYPE_CHECKING:
    from loopscope.models.initial_state import Rule


@dataclass(frozen=True)
class Protocol:
    """What a protocol sets.

    Attributes:
        about: the same in words.
        settings: of `MeasureConfig`, where the caller gives none.
        initial_state: how a drawn H_0 is drawn; None is the model's own choice.
        paper_bracket: the widest bracket around an optimum, by bisection, together with the paper's envelope, FP32
            residuals and adaptive extremes; None for ours.
    """

    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    initial_state: Rule | None = None
    paper_bracket: float | None = None


PROTOCOLS = {
    "loopscope": Protocol(
        about="batches by length, H_0 by question and position",
        settings={"batch_size": "auto", "interpolate": True},
    ),
    "paper": Protocol(
        about="BF16 weights and states, FP32 readout, two questions in a batch, H_0 by torch's own truncated normal",
        settings={"batch_size": "paper", "dtype": "bfloat16"},
        initial_state="paper",
        paper_bracket=1e-4,
    ),
}


def protocol_settings(given: object, options: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """A protocol's name, and the settings that it and what stands behind its name choose.

    >>> protocol_settings("paper:unit_size=8", ["unit_size"])
    ('paper', {'batch_size': 'paper', 'dtype': 'bfloat16', 'unit_size': '8'})
    """
    name, _, rest = text("protocol", given).partition(":")
    chosen = dict(PROTOCOLS[choice("protocol", name, list(PROTOCOLS))].settings)
    for entry in rest.split(",") if rest else ():
        option, equals, value = (word.strip() for word in entry.partition("="))
        if not equals or not value:
            raise LoopscopeError(f"{setting('protocol', given)}: {shown(entry)} is not NAME=VALUE")
        chosen[choice("protocol", option.replace("-", "_"), options)] = value
    return name, chosen
