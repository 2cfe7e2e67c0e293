"""The two protocols of `measure`, in one table: what each sets where the caller gives nothing, and what it stores.

`loopscope` is the default. `paper` follows the paper's text; where it names a choice, the line of the table says so.
A setting that the caller gives stands above the protocol's. The name belongs to a run's identity.
"""

from __future__ import annotations

from dataclasses import dataclass

from loopscope.errors import choice
from loopscope.models.initial_state import Rule


@dataclass(frozen=True)
class Protocol:
    """What a protocol sets.

    Attributes:
        about: the same in words.
        batch_size: how questions are put into batches.
        dtype: of weights and states; None is what `load_model` takes.
        readout_dtype: arithmetic of the readout.
        initial_state: how a drawn H_0 is drawn; None is the model's own way.
        every_scale: whether φ is evaluated at every scale through any readout, instead of interpolated where that is
            as good.
        paper_bracket: the widest bracket around an optimum, by bisection, together with the paper's envelope, FP32
            residuals and adaptive extremes; None for ours.
    """

    about: str
    batch_size: str
    dtype: str | None
    readout_dtype: str
    initial_state: Rule | None
    every_scale: bool
    paper_bracket: float | None


PROTOCOLS = {
    "loopscope": Protocol(
        about="batches by length, H_0 by question and position",
        batch_size="auto",
        dtype=None,
        readout_dtype="float32",
        initial_state=None,
        every_scale=False,
        paper_bracket=None,
    ),
    "paper": Protocol(
        about="BF16 weights and states, FP32 readout, two questions in a batch, H_0 by torch's own truncated normal",
        batch_size="paper",
        dtype="bfloat16",
        readout_dtype="float32",
        initial_state="paper",
        every_scale=True,
        paper_bracket=1e-4,
    ),
}
DEFAULT = "loopscope"


def find_protocol(name: str) -> Protocol:
    """The protocol of a name.

    >>> find_protocol("paper").dtype
    'bfloat16'
    """
    return PROTOCOLS[choice("protocol", name, list(PROTOCOLS))]
