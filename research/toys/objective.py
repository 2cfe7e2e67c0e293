"""What the toy models minimise.

Ouro, with ℓ_t the loss of a token after t loops and p the gate's exit distribution:

    L = Σ_t p_t ℓ_t − β H(p),   H(p) = −Σ_t p_t log p_t

or with fixed weights w_t instead of the gate's, L = Σ_t w_t ℓ_t.

Huginn, with r loops drawn for the step (λ = exp(N(log r̄ − σ²/2, σ)), r = 1 + Poisson(λ)): the loss after r loops,
gradients through the last k of them alone. Fixed weights are then the chances of r.

Shapes: B rows, S positions, T loops, D hidden width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from loopscope.models.batch import Batch
from loopscope.models.families.huginn import Huginn
from loopscope.models.families.ouro import Ouro
from loopscope.models.protocol import exit_probabilities
from loopscope.models.walk import Walk
from research.toys.text import BARE, STORY, WORKED


@dataclass(frozen=True)
class Supervised:
    """A padded batch and what is asked of it, all [B, S].

    Attributes:
        batch: the tokens.
        targets: the token after each position.
        weights: how much that token counts.
        solution: where it is part of a worked solution, for the log.
        story: where it is part of a document of stories, likewise.
    """

    batch: Batch
    targets: Tensor
    weights: Tensor
    solution: Tensor
    story: Tensor


@dataclass(frozen=True)
class Loss:
    """The objective, and for the log the exit chances and, at each depth, four numbers.

    These are the summed loss of solution tokens and their number, and the same of story tokens.
    """

    total: Tensor
    by_depth: dict[int, Tensor]
    exits: Tensor | None = None


def supervise(
    tokens_BS: Tensor,
    start_B: Tensor,
    length_B: Tensor,
    form_B: Tensor,
    *,
    prompt_weight: float,
    direct_weight: float,
    vocabulary: int,
) -> Supervised:
    """Targets and weights: tokens of worked solutions and stories count 1, of bare answers and prompts as given."""
    width = tokens_BS.shape[1]
    following = torch.arange(1, width + 1, device=tokens_BS.device)[None]
    valid = following < length_B[:, None]
    solution = valid & (following >= start_B[:, None])
    answer_weight = torch.where(form_B == BARE, direct_weight, 1.0)[:, None]
    weights = solution * answer_weight + (valid & ~solution) * prompt_weight
    targets = functional.pad(tokens_BS[:, 1:], (0, 1))
    mask = following <= length_B[:, None]
    batch = Batch(tokens_BS, mask, padding="right", highest_id=vocabulary - 1)
    worked, told = (solution & (form_B == form)[:, None] for form in (WORKED, STORY))
    return Supervised(batch, targets, weights, worked, told)


def expected_loss(losses_TBS: Tensor, exits_TBS: Tensor, entropy_weight: float) -> Tensor:
    """Ouro's objective at every token: Σ_t p_t ℓ_t − β H(p), [B, S].

    >>> half = torch.full((2, 1, 1), 0.5)
    >>> round(expected_loss(torch.tensor([1.0, 3.0])[:, None, None], half, 0.1).item(), 4)  # 2 − 0.1 log 2
    1.9307
    """
    chances = exits_TBS.clamp_min(1e-8)
    entropy = -(chances * chances.log()).sum(dim=0)
    return (exits_TBS * losses_TBS).sum(dim=0) - entropy_weight * entropy


def _token_losses(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    return functional.cross_entropy(logits_BSV.float().flatten(0, 1), targets_BS.flatten(), reduction="none").view(
        targets_BS.shape
    )


def _mean(values_BS: Tensor, weights_BS: Tensor) -> Tensor:
    return (values_BS * weights_BS).sum() / weights_BS.sum().clamp_min(1.0)


def _logged(losses_BS: Tensor, asked: Supervised) -> Tensor:
    with torch.no_grad():
        chosen = asked.solution, asked.story
        return torch.stack([part for mask in chosen for part in ((losses_BS * mask).sum(), mask.sum())])


def weighted_loss(model: Ouro, asked: Supervised, depth_weights: Sequence[float]) -> Loss:
    """Σ_t w_t ℓ_t over the loops 1, 2, …; a loop of weight 0 is not read out."""
    walk, by_depth, total = Walk.of(model, asked.batch), {}, torch.zeros((), device=asked.weights.device)
    for depth, weight in enumerate(depth_weights, 1):
        walk.advance()
        if weight:
            losses = _token_losses(walk.read(), asked.targets)
            total = total + weight * _mean(losses, asked.weights)
            by_depth[depth] = _logged(losses, asked)
    return Loss(total, by_depth)


def ouro_loss(model: Ouro, asked: Supervised, entropy_weight: float) -> Loss:
    """Expected loss over the exit distribution minus β times its entropy, over all trained depths."""
    walk, losses, gates = Walk.of(model, asked.batch), [], []
    for _ in range(model.trained_depth):
        gates.append(model.gate_logits(walk.advance()).float())
        losses.append(_token_losses(walk.read(), asked.targets))
    exits_TBS = exit_probabilities(gates).movedim(-1, 0)
    total = _mean(expected_loss(torch.stack(losses), exits_TBS, entropy_weight), asked.weights)
    with torch.no_grad():
        by_depth = {t: _logged(loss, asked) for t, loss in enumerate(losses, 1)}
        exits = torch.stack([_mean(chance, asked.weights) for chance in exits_TBS])
    return Loss(total, by_depth, exits)


def draw_recurrence(rng: np.random.Generator, mean: float, spread: float) -> int:
    """The number of loops of one training step: 1 + Poisson of a log-normal rate with the given mean."""
    rate = math.exp(rng.normal(math.log(mean) - spread**2 / 2, spread))
    return 1 + int(rng.poisson(rate))


def draw_state(model: Huginn, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """H_0 [B, S, D] on the generator's device: a normal cut at three deviations, as the model draws it to be read."""
    drawn = model.initial_state
    reach = math.erf(3.0 / math.sqrt(2.0))
    uniform = torch.rand((*shape, model.hidden_size), generator=generator, device=generator.device)
    normal = torch.erfinv((2.0 * uniform - 1.0) * reach) * math.sqrt(2.0)
    return normal.clamp(-3.0, 3.0) * (drawn.std * drawn.scale)


def huginn_loss(model: Huginn, asked: Supervised, state: Tensor, recurrence: int, backprop_steps: int) -> Loss:
    """The loss after `recurrence` loops from H_0 = `state`; gradients reach the last `backprop_steps` of them."""
    walk = Walk.of(
        model,
        Batch(
            asked.batch.input_ids,
            asked.batch.attention_mask,
            initial_state=state,
            padding="right",
            highest_id=asked.batch.highest_id,
        ),
    )
    with torch.no_grad():
        walk.to(recurrence - backprop_steps)
    walk.to(recurrence)
    # `readout` computes a slower attention in grad mode, for derivatives of any order; training needs the first.
    losses = _token_losses(model.readout_cached(walk.state, walk.context), asked.targets)
    return Loss(_mean(losses, asked.weights), {recurrence: _logged(losses, asked)})


GATE_RATE = 0.02


def train_gate(model: Ouro, batches: Iterable[Supervised], steps: int, entropy_weight: float) -> None:
    """Some steps of Ouro's objective on the exit gate alone, which fixed weights of the loops have left out."""
    gate = model.model.early_exit_gate
    model.requires_grad_(False)
    gate.requires_grad_(True)
    optimiser = torch.optim.AdamW(gate.parameters(), GATE_RATE, weight_decay=0.0)
    for step, asked in zip(range(steps), batches, strict=False):
        optimiser.param_groups[0]["lr"] = GATE_RATE * (1 - step / steps)
        optimiser.zero_grad(set_to_none=True)
        ouro_loss(model, asked, entropy_weight).total.backward()
        optimiser.step()
    model.requires_grad_(True)
