"""Training of the heads, on labels that the geometry of a train split gives.

Scale head at the step to loop t: the labels are A and Q of the token itself, the quadratic Aα + Qα² that fits its gains
at the five scales best. The head's output u maximises the mean of A·u + Q·u², which is least squares on α̂ = −A/2Q with
the weight −Q: a token counts by what its scale is worth. At inference u is clipped to [0, 1].

Exit head: the label at loop t is the gain of the next loop and of what going on from there is worth,

    g_t = log p_{t+1}(y) − log p_t(y) + max(0, ĉ_{t+1}),    ĉ_t = E[g_t | H_t, D_t, …] by least squares,

trained from the last loop backwards, with ĉ = 0 at the last one: the later improvement that stopping well can bring.
Labels are clipped to ±2 nats.

Every tenth question of the train split is held out to choose the epoch, the untrained head included: that one takes the
best constant. So a head that finds nothing falls back to the constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from loopscope.control.heads import Card, ExitHead, Gathered, Network, ScaleHead, features, states_at
from loopscope.control.trace import SCALES

CLIP = 2.0
LEAST_CURVATURE = -1e-4
"""Q of a label is at most this, so that the best scale of a token stays finite."""
HELD_OUT = 10
"""Every so many questions of the train split, one chooses the epoch."""


@dataclass(frozen=True)
class Training:
    """How a network is trained."""

    hidden: int = 64
    epochs: int = 8
    batch: int = 1024
    rate: float = 2e-3
    decay: float = 0.1
    dropout: float = 0.3
    seed: int = 0


def train_scale_head(gathered: Gathered, depth: int, training: Training = Training()) -> ScaleHead:  # noqa: B008
    """A scale head for the step to one loop, from the states and gains of a train split."""
    gains_RJ = torch.from_numpy(gathered.trace.scaled(depth)).float()
    gains_RJ = gains_RJ - gains_RJ[:, :1]
    scales_J = torch.tensor(SCALES)
    basis_JK = torch.stack([scales_J, scales_J.square()], dim=1)
    A_R, Q_R = (gains_RJ @ torch.linalg.pinv(basis_JK).T).unbind(dim=1)
    Q_R = Q_R.clamp_max(LEAST_CURVATURE)

    def loss(output_R: Tensor, rows_R: Tensor) -> Tensor:
        worth_R: Tensor = A_R[rows_R] * output_R + Q_R[rows_R] * output_R.square()
        return -worth_R

    offset = float((A_R.mean() / (-2 * Q_R.mean())).clamp(0, 1))
    network, note = _train(gathered, depth, loss, offset, training)
    labels = f"A and Q of the step {depth - 1}→{depth} of every token, from five scales"
    card = _card(gathered, "scale", labels, note)
    return ScaleHead({depth: network}, card)


def train_exit_head(
    gathered: Gathered,
    first: int = 1,
    last: int | None = None,
    training: Training = Training(),  # noqa: B008
) -> ExitHead:
    """An exit head that decides at the loops from `first` to the one before `last`."""
    last = gathered.trace.loops if last is None else last
    networks: dict[int, Network] = {}
    beyond_R, notes = torch.zeros(len(gathered.trace)), []
    for depth in range(last - 1, first - 1, -1):
        step = gathered.trace.log_prob(depth + 1) - gathered.trace.log_prob(depth)
        label_R = (torch.from_numpy(step).float() + beyond_R.clamp_min(0)).clamp(-CLIP, CLIP)
        offset = float(label_R.mean())

        def error(output_R: Tensor, rows_R: Tensor, label_R: Tensor = label_R) -> Tensor:
            return (output_R - label_R[rows_R]).square()

        networks[depth], note = _train(gathered, depth, error, offset, training)
        notes.append(note)
        with torch.no_grad():
            beyond_R = networks[depth](features(states_at(gathered, depth)))
    labels = "gain of the next loop and of going on from there, from the last loop backwards"
    card = _card(gathered, "exit", labels, "; ".join(reversed(notes)))
    return ExitHead(networks=dict(sorted(networks.items())), card=card, earliest=first)


def _train(
    gathered: Gathered, depth: int, loss: Callable[[Tensor, Tensor], Tensor], offset: float, training: Training
) -> tuple[Network, str]:
    """The network with the smallest mean loss on the held-out questions, and how it compares with the constant."""
    generator = torch.Generator().manual_seed(training.seed)
    x_RF = features(states_at(gathered, depth))
    held_R = torch.from_numpy(gathered.trace.question_R % HELD_OUT == HELD_OUT - 1)
    kept, held = torch.nonzero(~held_R)[:, 0], torch.nonzero(held_R)[:, 0]
    if not len(held):
        kept = held = torch.arange(len(held_R))
    mean_F, deviation_F = x_RF[kept].mean(dim=0), x_RF[kept].std(dim=0).clamp_min(1e-6)
    x_RF = (x_RF - mean_F) / deviation_F
    hidden = nn.Linear(x_RF.shape[1], training.hidden)
    with torch.no_grad():
        hidden.weight.normal_(0, x_RF.shape[1] ** -0.5, generator=generator)
        hidden.bias.zero_()
    output, constant = nn.Parameter(torch.zeros(training.hidden)), nn.Parameter(torch.tensor(offset))
    drop = nn.Dropout(training.dropout)
    steps = max(1, training.epochs * len(kept) // training.batch)
    weights = [hidden.weight, hidden.bias, output, constant]
    optimiser = torch.optim.AdamW(weights, training.rate, weight_decay=training.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, training.rate, total_steps=steps + 1)

    def now() -> tuple[float, list[Tensor]]:
        with torch.no_grad():
            found = nn.functional.gelu(hidden(x_RF[held])) @ output + constant
            return float(loss(found, held).mean()), [weight.detach().clone() for weight in weights]

    start, chosen = now()
    best = start
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(training.seed)  # dropout has no generator of its own
    for step in range(steps):
        rows = kept[torch.randint(len(kept), (training.batch,), generator=generator)]
        found = nn.functional.gelu(drop(hidden(x_RF[rows]))) @ output + constant
        optimiser.zero_grad()
        loss(found, rows).mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        if (step + 1) % max(1, steps // training.epochs) == 0:
            reached, held_weights = now()
            if reached < best:
                best, chosen = reached, held_weights
    torch.random.set_rng_state(torch_state)
    note = f"loop {depth}: held-out loss {best:.6f}, of the constant {start:.6f}"
    return Network(mean_F, deviation_F, *chosen), note


def _card(gathered: Gathered, kind: Literal["exit", "scale"], labels: str, notes: str) -> Card:
    trace = gathered.trace
    return Card(
        kind=kind, model=gathered.model, boundary=gathered.boundary, labels=labels, questions=trace.questions,
        positions=len(trace), notes=notes,
    )  # fmt: skip
