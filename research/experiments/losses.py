"""Seven ways to train the loop of a small Ouro, each the loss of one step: depths, gate, drawn loops, three penalties.

Every function takes a `Step` and its way's one setting. All see the same batch; they differ in the depths whose loss
counts and in what they ask of updates. `training_losses.py` has the penalties for models of any family.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from loopscope.models.families.ouro import Ouro
from loopscope.models.protocol import exit_probabilities
from loopscope.models.walk import Walk
from research.experiments.training_losses import fixed_point_loss, geometry_loss, jacobian_penalty, update_geometry
from research.toys.objective import Supervised, draw_recurrence, expected_loss

REACH = 4
"""Loop counts up to so many times the trained depth are drawn."""
DRAWN, LOOPS = 5, 4
"""The geometry loss draws depths up to so many times the trained one; gradients go through so many loops there."""
BEGINS, WHOLE = 0.1, 0.9
"""Shares of the training at which its weight begins to grow and is whole."""
ENTROPY = 0.1
"""β of the gate's objective below the geometry loss."""
SPREAD = 0.5
"""σ of the log-normal rate of drawn loop counts, as Huginn's."""


@dataclass
class Step:
    """One step of a training.

    Attributes:
        model: its weights.
        asked: the batch.
        rng: what loop counts and depths are drawn from.
        generator: what directions are drawn from, on the model's device.
        progress: the share of the training behind it.
    """

    model: Ouro
    asked: Supervised
    rng: np.random.Generator
    generator: torch.Generator
    progress: float

    @property
    def depth(self) -> int:
        """The trained depth."""
        return self.model.trained_depth

    def walk(self) -> Walk:
        """The batch at depth 0."""
        return Walk.of(self.model, self.asked.batch)

    def losses(self, walk: Walk) -> Tensor:
        """−log p of every token at the walk's depth, [B, S]."""
        logits, targets = walk.read().float(), self.asked.targets
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)

    def mean(self, values_BS: Tensor) -> Tensor:
        """Over the tokens that count."""
        return (values_BS * self.asked.weights).sum() / self.asked.weights.sum()


def last_depth(step: Step, _: None) -> Tensor:
    """The loss after the trained number of loops."""
    return step.mean(step.losses(step.walk().to(step.depth)))


def all_depths(step: Step, weights: tuple[float, ...]) -> Tensor:
    """Σ_t w_t ℓ_t over the loops up to the trained depth."""
    walk, total = step.walk(), torch.zeros((), device=step.asked.weights.device)
    for depth, weight in enumerate(weights, 1):
        total = total + weight * step.mean(step.losses(walk.to(depth)))
    return total


def gate(step: Step, entropy_weight: float, walk: Walk | None = None) -> Tensor:
    """Ouro's objective: the expected loss over the gate's exits, less β times their entropy."""
    walk, losses, gates = walk or step.walk(), list[Tensor](), list[Tensor]()
    for depth in range(1, step.depth + 1):
        gates.append(step.model.gate_logits(walk.to(depth).state).float())
        losses.append(step.losses(walk))
    exits_TBS = exit_probabilities(gates).movedim(-1, 0)
    return step.mean(expected_loss(torch.stack(losses), exits_TBS, entropy_weight))


def random_loops(step: Step, drawn: tuple[int, float]) -> Tensor:
    """The loss after a drawn number of loops: log-normal Poisson of a mean, at least so many; gradients through all."""
    fewest, mean = drawn
    loops = max(fewest, draw_recurrence(step.rng, mean - 1, SPREAD))
    return step.mean(step.losses(step.walk().to(min(loops, REACH * step.depth))))


def fixed_point(step: Step, weight: float) -> Tensor:
    """The last depth's loss and the squared length of its last update, relative to the state."""
    walk = step.walk().to(step.depth - 1)
    before = walk.state
    loss = step.mean(step.losses(walk.to(step.depth)))
    return loss + weight * fixed_point_loss(before, walk.state, step.asked.weights)


def jacobian(step: Step, weight: float) -> Tensor:
    """The last depth's loss and the squared gain of one more loop there."""
    walk = step.walk().to(step.depth)
    loss = step.mean(step.losses(walk))

    def loop(state: Tensor) -> Tensor:
        return step.model.step(state, walk.context)

    return loss + weight * jacobian_penalty(loop, walk.state, step.asked.batch.attention_mask, step.generator)


def geometry(step: Step, setting: tuple[float, float]) -> Tensor:
    """Ouro's objective, and so much of `geometry_loss` of the way from the trained depth to a drawn one beyond it.

    The straight way from H_T to H_t, all loops between in one, is asked to gain: so a state that has drifted is drawn
    back to where it was trained, which does not follow from asking it of one update after the other. Gradients go
    through the last `LOOPS` loops alone, so that far depths cost little. The weight grows from `BEGINS` to `WHOLE`:
    before the model has learnt something to keep, the loss is in the way.

    Args:
        step: the step.
        setting: the weight, and the margin of `geometry_loss`.
    """
    weight, margin = setting
    walk = step.walk()
    loss = gate(step, ENTROPY, walk)
    weight *= min(1.0, max(0.0, (step.progress - BEGINS) / (WHOLE - BEGINS)))
    if not weight:
        return loss
    anchor = walk.state.detach()
    beyond, drawn = walk.changed(anchor), int(step.rng.integers(step.depth + 1, DRAWN * step.depth + 1))
    with torch.no_grad():
        beyond.to(drawn - LOOPS)
    beyond.to(drawn)
    found = update_geometry(step.model.readout, anchor, beyond.state, step.asked.targets, step.asked.weights)
    return loss + weight * geometry_loss(found, margin)
