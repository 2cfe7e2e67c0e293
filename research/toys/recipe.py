"""What each embedded model is and how it is trained: sizes, objective, data mixture, optimiser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from loopscope.models.registry import EMBEDDED

VOCABULARY = 1024
END_ID = 0


@dataclass(frozen=True)
class Mixture:
    """The training text: which problems and stories, in which form, in which fixed shapes.

    Attributes:
        widths: the row widths that texts are padded to; longer ones are left out.
        batch_tokens: tokens of one step, padding included.
        shard_problems: problems and documents that a data worker makes at a time.
        story_share: share of rows that are documents of stories, which are some three times as long as problems.
        second_draw: chance that a problem in which nobody is compared with anybody is drawn once more; which way
            "Ben has 7 more than Finn" goes is learnt last.
        direct_share: share of problems asked for the bare answer, without a worked solution.
        operations: chance of two to six operations, for worked solutions.
        direct_operations: the same for bare answers, which few loops can give only for short problems.
    """

    widths: tuple[int, ...] = (144, 224, 512, 608)
    batch_tokens: int = 32_768
    shard_problems: int = 8_192
    story_share: float = 0.15
    second_draw: float = 0.0
    direct_share: float = 0.2
    operations: tuple[float, ...] = (0.2, 0.22, 0.24, 0.17, 0.17)
    direct_operations: tuple[float, ...] = (0.35, 0.25, 0.2, 0.1, 0.1)

    def rows(self, width: int) -> int:
        """How many problems of this width make one batch."""
        return max(1, self.batch_tokens // width)

    def at_most(self, tokens: int) -> Mixture:
        """The same with steps of at most so many tokens."""
        return replace(self, batch_tokens=min(self.batch_tokens, tokens))


@dataclass(frozen=True)
class Stretch:
    """A part of a training with its own text; its optimisers begin anew.

    Attributes:
        until: the share of the whole training at its end.
        decay_from: the share of the training up to its end from which the learning rate comes down.
    """

    until: float
    mixture: Mixture
    decay_from: float


@dataclass(frozen=True)
class Recipe:
    """One embedded model's training.

    Attributes:
        minutes: what the shipped weights took on one H200, and what a training takes unless told otherwise.
        mixture: the text, in the last stretch where there are several.
        earlier: the stretches before the last.
        depth_weights: what the loss after 1, 2, … loops counts (Ouro), or how likely a step has that many
            (Huginn, and Ouro where `drawn`); left out, the gate's chances or a log-normal Poisson number.
        drawn: every step of an Ouro model has a random number of loops and the loss after the last of them.
        gate_steps: steps that train Ouro's gate alone, after everything else.
        entropy_weight: β of Ouro's objective, expected loss − β · entropy of the exit distribution.
        backprop_steps: the last recurrences that gradients reach (Huginn).
        recurrence_spread: σ of the log-normal under the Poisson recurrence (Huginn).
        prompt_weight: weight of a question's tokens in the loss; a solution's tokens have 1.
        direct_weight: weight of a bare answer's tokens.
    """

    name: str
    family: Literal["ouro", "huginn"]
    config: Mapping[str, Any]
    minutes: float
    mixture: Mixture = Mixture()
    depth_weights: tuple[float, ...] | None = None
    drawn: bool = False
    gate_steps: int = 0
    entropy_weight: float = 0.05
    backprop_steps: int = 4
    recurrence_spread: float = 0.5
    prompt_weight: float = 0.1
    direct_weight: float = 2.0
    matrix_rate: float = 0.02
    vector_rate: float = 3e-3
    weight_decay: float = 0.02
    warmup_steps: int = 100
    decay_from: float = 0.45
    earlier: tuple[Stretch, ...] = ()

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """All of them in order."""
        return (*self.earlier, Stretch(1.0, self.mixture, self.decay_from))


def embedded_config(name: str) -> dict[str, Any]:
    """config.json of an embedded model."""
    config: dict[str, Any] = json.loads((EMBEDDED / name / "config.json").read_text())
    return config


def ouro_config(hidden: int, inner: int, layers: int, heads: int, loops: int) -> dict[str, Any]:
    """config.json of an Ouro model of these sizes."""
    return embedded_config("toy-ouro") | {
        "head_dim": hidden // heads,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "layer_types": ["full_attention"] * layers,
        "max_window_layers": layers,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "total_ut_steps": loops,
    }


RECIPES = {
    "toy-ouro": Recipe(
        "toy-ouro",
        "ouro",
        embedded_config("toy-ouro"),
        minutes=9.3,
        # The shipped weights: 306 s, 402 s and 558 s on one device, each stretch from the exported weights of the last.
        earlier=(Stretch(306 / 558, Mixture(), 0.45), Stretch(402 / 558, Mixture(second_draw=0.6), 0.45)),
        mixture=Mixture(second_draw=1.0, story_share=0.12, direct_share=0.1, operations=(0.35, 0.3, 0.2, 0.08, 0.07)),
        decay_from=0.8,
        depth_weights=(0.0, 0.0, 0.0, 1.0),
        gate_steps=120,
    ),
    "toy-huginn": Recipe(
        "toy-huginn",
        "huginn",
        embedded_config("toy-huginn"),
        minutes=4.3,
        depth_weights=(0.0, 0.0, 1.0),
        backprop_steps=3,
    ),
}
# Two to six loops at equal chance: four on average, so a step costs what one of toy-ouro costs.
RECIPES["toy-ouro-drawn"] = replace(
    RECIPES["toy-ouro"], name="toy-ouro-drawn", depth_weights=(0.0, 0.2, 0.2, 0.2, 0.2, 0.2), drawn=True
)
