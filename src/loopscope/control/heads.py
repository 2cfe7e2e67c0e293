"""Learned heads: when to stop and how far to step, from the states that are there at inference.

A head is a network of one hidden layer for every loop that it decides at. It reads

    H_t and D_t, each divided by its root mean square; log ‖H_t‖, log ‖D_t‖, cos(H_t, H_{t−1}), and of the step before
    log ‖D_{t−1}‖ and cos(D_t, D_{t−1})

standardised while it is trained; the first layer then takes that over. Both kinds are policies. They compute their
number from the states while a model runs; over a trace they read it from a column that `annotate` adds. A stored trace
has no states; `gather` makes one pass of the model over its examples and keeps them, in half precision.

Scale head at the step to loop t: the labels are A and Q of the token itself, the quadratic Aα + Qα² that fits its gains
at the five scales best. The head's output u maximises the mean of A·u + Q·u², which is least squares on α̂ = −A/2Q with
the weight −Q: a token counts by what its scale is worth. At inference u is clipped to [0, 1].

Exit head: the label at loop t is the gain of the next loop and of what going on from there is worth,

    g_t = log p_{t+1}(y) − log p_t(y) + max(0, ĉ_{t+1}),    ĉ_t = E[g_t | H_t, D_t, …] by least squares,

trained from the last loop backwards, with ĉ = 0 at the last one. Labels are clipped to ±2 nats.

Every tenth question of the train split is held out to choose the epoch, the untrained head included: that one takes the
best constant. So a head that finds nothing falls back to the constant.

Shapes: R positions, T loops, D hidden width, F = 2D + 5 features, K hidden units of a head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from loopscope.control.act import Questions, of_states
from loopscope.control.policies import Array, Decision, Policy, Seen, ThresholdRule
from loopscope.control.trace import SCALES, Trace
from loopscope.errors import LoopscopeError
from loopscope.limits import check_regular
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk
from loopscope.store.manifest import sha256_bytes
from loopscope.store.writer import clear_write_errors, write_atomically

_TINY = 1e-12
CLIP = 2.0
LEAST_CURVATURE = -1e-4
"""Q of a label is at most this, so that the best scale of a token stays finite."""
HELD_OUT = 10
"""Every so many questions of the train split, one chooses the epoch."""


@dataclass(frozen=True)
class Gathered:
    """A trace and its states H_0 … H_T at the reference positions, float16 [T + 1, R, D]; the model and boundary."""

    trace: Trace
    states: NDArray[np.float16]
    model: str
    boundary: str

    def at(self, depth: int) -> list[Tensor]:
        """H_t, H_{t−1} and H_{t−2}, float32."""
        return [torch.from_numpy(self.states[t]).float() for t in range(depth, max(depth - 3, -1), -1)]


@torch.no_grad()
def gather(model: LoopedModel, questions: Questions, trace: Trace) -> Gathered:
    """The states of a trace, whose questions these are, in its order."""
    states = np.zeros((trace.loops + 1, len(questions), model.hidden_size), dtype=np.float16)
    for batch, where_N2, at_N in questions.batches(model.device):
        walk = Walk.of(model, batch)
        for depth in range(trace.loops + 1):
            states[depth, at_N] = walk.to(depth).state[*where_N2.T].half().cpu().numpy()
    return Gathered(trace, states, model.name, model.boundary)


def features(states: Sequence[Tensor]) -> Tensor:
    """What heads read of H_t, H_{t−1} and H_{t−2}, float32 [R, F]; zero for what needs a state that is not there."""
    now = [state.float() for state in states]
    norms = (of_states("state_norm", now), of_states("step_norm", now), of_states("step_norm", now[1:]))
    logs = [norm.clamp_min(_TINY).log() for norm in norms]
    scalars = [*logs[:2], of_states("state_cosine", now), logs[2], of_states("step_cosine", now)]
    whole = [x / x.square().mean(-1, keepdim=True).sqrt().clamp_min(_TINY) for x in (now[0], now[0] - now[1])]
    return torch.cat([*whole, torch.stack(scalars, dim=1)], dim=1).nan_to_num(0.0)


class Network(nn.Module):
    """One hidden layer: w·gelu(W·x + b) + c."""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner, self.outer, self.dropout = nn.Linear(width, hidden), nn.Linear(hidden, 1), nn.Dropout(dropout)

    def forward(self, x_RF: Tensor) -> Tensor:
        """The output, [R]."""
        if x_RF.shape[1] != self.inner.in_features:
            raise LoopscopeError(f"this head reads {self.inner.in_features} features, the model has {x_RF.shape[1]}")
        found: Tensor = self.outer(self.dropout(nn.functional.gelu(self.inner(x_RF))))[:, 0]
        return found


class Card(BaseModel):
    """What a head is: exit or scale, the model and boundary whose states it reads, the price at which it exits."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)
    kind: Literal["exit", "scale"]
    model: str
    boundary: str
    threshold: float = 0.0


@dataclass(frozen=True)
class ExitHead(ThresholdRule):
    """Stops where the gain that going on is expected to bring is below a price; at a loop without a network goes on."""

    name: str = "exit head"
    signals: tuple[str, ...] = ("exit_head",)
    earliest: int = 1  # a loop without a network stops nothing
    networks: Mapping[int, Network] = dataclasses.field(default_factory=dict)
    card: Card | None = None

    def value(self, seen: Seen, memory: Any) -> Array:
        """The expected gain of going on."""
        return self.output(seen.depth, seen.states) if seen.states else seen.signal("exit_head")

    def output(self, depth: int, states: Sequence[Tensor]) -> Tensor:
        """The same, from states, [R]."""
        network = self.networks.get(depth)
        return torch.full_like(states[0][:, 0], torch.nan) if network is None else network(features(states))


@dataclass(frozen=True)
class ScaleHead(Policy):
    """Takes the step to one loop, that of its network, at a scale of its own for every position, and stops there."""

    networks: Mapping[int, Network]
    card: Card | None = None
    signals: tuple[str, ...] = ("scale_head",)

    @property
    def depth(self) -> int:
        """The loop that it decides at."""
        return min(self.networks)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The update that it scales."""
        return f"scale head at {self.depth - 1}→{self.depth}"

    def decide(self, seen: Seen, memory: Any) -> Decision:
        """The scale, once the loop is reached."""
        if seen.depth < self.depth:
            return Decision()
        return Decision(True, self.output(seen.depth, seen.states) if seen.states else seen.signal("scale_head"))

    def output(self, depth: int, states: Sequence[Tensor]) -> Tensor:
        """The scale of the step that led to a state, [R]: the network's output, clipped."""
        return torch.clamp(self.networks[depth](features(states)), 0, 1)


Head = ExitHead | ScaleHead


@torch.no_grad()
def annotate(gathered: Gathered, *heads: Head) -> Trace:
    """The trace with the numbers of heads as columns, so that they can be followed and fitted without a model."""
    columns = dict(gathered.trace.columns)
    for head in heads:
        column = np.full((len(gathered.trace), gathered.trace.loops), np.nan, dtype=np.float32)
        for depth in set(head.networks) & set(range(1, gathered.trace.loops + 1)):
            column[:, depth - 1] = head.output(depth, gathered.at(depth)).numpy()
        columns[head.signals[0]] = column
    return dataclasses.replace(gathered.trace, columns=columns)


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
    scales_J = torch.tensor(SCALES)
    basis_JK = torch.stack([scales_J, scales_J.square()], dim=1)
    A_R, Q_R = ((gains_RJ - gains_RJ[:, :1]) @ torch.linalg.pinv(basis_JK).T).unbind(dim=1)
    Q_R = Q_R.clamp_max(LEAST_CURVATURE)

    def loss(u_R: Tensor, rows_R: Tensor) -> Tensor:
        worth_R: Tensor = A_R[rows_R] * u_R + Q_R[rows_R] * u_R.square()
        return -worth_R

    offset = float((A_R.mean() / (-2 * Q_R.mean())).clamp(0, 1))
    network = _train(gathered, depth, loss, offset, training)
    return ScaleHead({depth: network}, Card(kind="scale", model=gathered.model, boundary=gathered.boundary))


def train_exit_head(
    gathered: Gathered, first: int = 1, training: Training = Training()  # noqa: B008
) -> ExitHead:  # fmt: skip
    """An exit head that decides at the loops from `first` to the last but one of the trace."""
    networks: dict[int, Network] = {}
    beyond_R = torch.zeros(len(gathered.trace))
    for depth in range(gathered.trace.loops - 1, first - 1, -1):
        step_R = gathered.trace.log_prob(depth + 1) - gathered.trace.log_prob(depth)
        label_R = (torch.from_numpy(step_R).float() + beyond_R.clamp_min(0)).clamp(-CLIP, CLIP)

        def error(output_R: Tensor, rows_R: Tensor, label_R: Tensor = label_R) -> Tensor:
            squared_R: Tensor = (output_R - label_R[rows_R]).square()
            return squared_R

        networks[depth] = _train(gathered, depth, error, float(label_R.mean()), training)
        with torch.no_grad():
            beyond_R = networks[depth](features(gathered.at(depth)))
    card = Card(kind="exit", model=gathered.model, boundary=gathered.boundary)
    return ExitHead(networks=networks, card=card)


def _train(
    gathered: Gathered, depth: int, loss: Callable[[Tensor, Tensor], Tensor], offset: float, training: Training
) -> Network:
    """The network with the smallest mean loss on the held-out questions."""
    x_RF = features(gathered.at(depth))
    held_R = torch.from_numpy(gathered.trace.question_R % HELD_OUT == HELD_OUT - 1)
    kept, held = torch.nonzero(~held_R)[:, 0], torch.nonzero(held_R)[:, 0]
    if not len(held):
        kept = held = torch.arange(len(held_R))
    mean_F, deviation_F = x_RF[kept].mean(dim=0), x_RF[kept].std(dim=0).clamp_min(1e-6)
    x_RF = (x_RF - mean_F) / deviation_F
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        network = Network(x_RF.shape[1], training.hidden, training.dropout)
        nn.init.normal_(network.inner.weight, std=x_RF.shape[1] ** -0.5)
        for start, value in ((network.inner.bias, 0.0), (network.outer.weight, 0.0), (network.outer.bias, offset)):
            nn.init.constant_(start, value)
        steps = max(1, training.epochs * len(kept) // training.batch)
        optimiser = torch.optim.AdamW(network.parameters(), training.rate, weight_decay=training.decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, training.rate, total_steps=steps + 1)

        @torch.no_grad()
        def held_out() -> float:
            return float(loss(network.eval()(x_RF[held]), held).mean())

        best, chosen = held_out(), deepcopy(network.state_dict())
        for step in range(1, steps + 1):
            rows = kept[torch.randint(len(kept), (training.batch,))]
            optimiser.zero_grad()
            loss(network.train()(x_RF[rows]), rows).mean().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            if step % max(1, steps // training.epochs) == 0 and (reached := held_out()) < best:
                best, chosen = reached, deepcopy(network.state_dict())
    network.load_state_dict(chosen)
    with torch.no_grad():  # from here on it reads the features as they are
        network.inner.weight.div_(deviation_F)
        network.inner.bias.sub_(network.inner.weight @ mean_F)
    return network.eval().requires_grad_(False)


_KEY = "loopscope_head"


def _sealed(card: str, tensors: Mapping[str, Tensor]) -> str:
    """The card behind a digest of it and of the tensors: one entry, for several are stored in no fixed order."""
    return f"{sha256_bytes(save(dict(tensors), {_KEY: card}))} {card}"


def save_head(head: Head, path: Path) -> Path:
    """Write a head as safetensors, whole or not at all."""
    assert head.card is not None
    tensors = nn.ModuleDict({f"loop{depth}": network for depth, network in head.networks.items()}).state_dict()
    card = head.card.model_copy(update={"threshold": head.threshold} if isinstance(head, ExitHead) else {})
    with clear_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save(tensors, {_KEY: _sealed(card.model_dump_json(), tensors)}))
    return path


def load_head(path: str | Path) -> Head:
    """A head that `save_head` wrote.

    Raises:
        LoopscopeError: the file holds no head.
    """
    check_regular(path, "head")
    networks: dict[int, Network] = {}
    try:
        with safe_open(path, framework="pt") as file:
            sealed = (file.metadata() or {}).get(_KEY, "")
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            described = sealed.partition(" ")[2]
            if sealed != _sealed(described, stored):
                raise ValueError("it does not match its own digest")
            card = Card.model_validate_json(described)
            for loop in sorted({name.partition(".")[0] for name in stored}):
                tensors = {name: stored[f"{loop}.{name}"] for name in Network(1, 1).state_dict()}
                hidden, width = tensors["inner.weight"].shape
                _, depth = loop.split("loop")
                network = networks[int(depth)] = Network(width, hidden)
                network.eval().requires_grad_(False).load_state_dict(tensors)
    except (OSError, SafetensorError, ValidationError, ValueError, KeyError, RuntimeError) as error:
        raise LoopscopeError(f"{path} is not a head that loopscope wrote: {str(error).splitlines()[0]}") from None
    if min(networks, default=0) < 1:
        raise LoopscopeError(f"{path} is not a head that loopscope wrote: it has no network of a loop")
    if card.kind == "scale":
        return ScaleHead(networks, card)
    return ExitHead(threshold=card.threshold, networks=networks, card=card)
