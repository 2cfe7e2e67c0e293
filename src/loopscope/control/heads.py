"""Learned heads: when to stop and how far to step, from the states that are there at inference.

A head is a network of one hidden layer for every loop that it decides at. It reads

    H_t and D_t, each divided by its root mean square; log ‖H_t‖, log ‖D_t‖, cos(H_t, H_{t−1}), and of the step before
    log ‖D_{t−1}‖ and cos(D_t, D_{t−1})

standardised by the means and deviations of the train positions. Both kinds are policies. They compute their number from
the states while a model runs; over a trace they read it from a column that `annotate` adds. A stored trace has no
states; `gather` makes one pass of the model over its examples and keeps them, in half precision.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional

from loopscope.control.act import Questions
from loopscope.control.policies import ThresholdRule
from loopscope.control.policy import Array, Decision, Policy, Seen
from loopscope.control.signals import of_states
from loopscope.control.trace import SCALES, Trace
from loopscope.errors import LoopscopeError
from loopscope.limits import check_regular
from loopscope.models.checkpoint import MOST_LOOPS
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk
from loopscope.store.files import clear_write_errors, write_atomically

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


@dataclass(frozen=True)
class Network:
    """One hidden layer: w·gelu(W·(x − mean)/deviation + b) + c."""

    mean_F: Tensor
    deviation_F: Tensor
    weight_KF: Tensor
    bias_K: Tensor
    output_K: Tensor
    offset: Tensor

    def __call__(self, x_RF: Tensor, dropout: float = 0.0) -> Tensor:
        """The output, [R]."""
        if x_RF.shape[1] != len(self.mean_F):
            raise LoopscopeError(f"this head reads {len(self.mean_F)} features, and the model has {x_RF.shape[1]}")
        mean_F, deviation_F, *weights = (tensor.to(x_RF.device) for tensor in vars(self).values())
        weight_KF, bias_K, output_K, offset = weights
        hidden_RK = functional.gelu(functional.linear((x_RF - mean_F) / deviation_F, weight_KF, bias_K))
        found: Tensor = functional.dropout(hidden_RK, dropout) @ output_K + offset
        return found

    def fits(self) -> bool:
        """Whether its shapes belong together."""
        hidden, width = self.weight_KF.shape if self.weight_KF.dim() == 2 else (-1, -1)
        expected = ((width,), (width,), (hidden, width), (hidden,), (hidden,), ())
        return tuple(tuple(tensor.shape) for tensor in vars(self).values()) == expected


class Card(BaseModel):
    """Where a head comes from: the model and boundary whose states it reads, what it was trained on and found."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)
    kind: Literal["exit", "scale"]
    model: str
    boundary: str
    labels: str
    questions: Annotated[int, Field(ge=0, le=2**40)]
    positions: Annotated[int, Field(ge=0, le=2**40)]
    notes: str = ""
    threshold: float = 0.0
    earliest: Annotated[int, Field(ge=1, le=MOST_LOOPS)] = 1


@dataclass(frozen=True)
class ExitHead(ThresholdRule):
    """Stops where the gain that going on is expected to bring is below a price; at a loop without a network goes on."""

    name: str = "exit head"
    signals: tuple[str, ...] = ("exit_head",)
    earliest: int = 1
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
        return self.networks[depth](features(states)).clamp(0, 1)


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
    network, note = _train(gathered, depth, loss, offset, training)
    labels = f"A and Q of the step {depth - 1}→{depth} of every token, from five scales"
    return ScaleHead({depth: network}, _card(gathered, "scale", labels, note))


def train_exit_head(
    gathered: Gathered, first: int = 1, last: int | None = None, training: Training = Training()  # noqa: B008
) -> ExitHead:  # fmt: skip
    """An exit head that decides at the loops from `first` to the one before `last`."""
    last = gathered.trace.loops if last is None else last
    networks: dict[int, Network] = {}
    beyond_R, notes = torch.zeros(len(gathered.trace)), []
    for depth in range(last - 1, first - 1, -1):
        step_R = gathered.trace.log_prob(depth + 1) - gathered.trace.log_prob(depth)
        label_R = (torch.from_numpy(step_R).float() + beyond_R.clamp_min(0)).clamp(-CLIP, CLIP)

        def error(output_R: Tensor, rows_R: Tensor, label_R: Tensor = label_R) -> Tensor:
            squared_R: Tensor = (output_R - label_R[rows_R]).square()
            return squared_R

        networks[depth], note = _train(gathered, depth, error, float(label_R.mean()), training)
        notes.append(note)
        with torch.no_grad():
            beyond_R = networks[depth](features(gathered.at(depth)))
    labels = "gain of the next loop and of going on from there, from the last loop backwards"
    card = _card(gathered, "exit", labels, "; ".join(reversed(notes)))
    return ExitHead(networks=dict(sorted(networks.items())), card=card, earliest=first)


def _train(
    gathered: Gathered, depth: int, loss: Callable[[Tensor, Tensor], Tensor], offset: float, training: Training
) -> tuple[Network, str]:
    """The network with the smallest mean loss on the held-out questions, and how it compares with the constant."""
    x_RF = features(gathered.at(depth))
    held_R = torch.from_numpy(gathered.trace.question_R % HELD_OUT == HELD_OUT - 1)
    kept, held = torch.nonzero(~held_R)[:, 0], torch.nonzero(held_R)[:, 0]
    if not len(held):
        kept = held = torch.arange(len(held_R))
    rng_state = torch.random.get_rng_state()
    torch.manual_seed(training.seed)
    weight_KF = torch.randn(training.hidden, x_RF.shape[1]) * x_RF.shape[1] ** -0.5
    trained = [weight_KF, torch.zeros(training.hidden), torch.zeros(training.hidden), torch.tensor(offset)]
    moments = x_RF[kept].mean(dim=0), x_RF[kept].std(dim=0).clamp_min(1e-6)
    network = Network(*moments, *(tensor.requires_grad_() for tensor in trained))
    steps = max(1, training.epochs * len(kept) // training.batch)
    optimiser = torch.optim.AdamW(trained, training.rate, weight_decay=training.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, training.rate, total_steps=steps + 1)

    def now() -> tuple[float, list[Tensor]]:
        with torch.no_grad():
            return float(loss(network(x_RF[held]), held).mean()), [tensor.detach().clone() for tensor in trained]

    start, chosen = now()
    best = start
    for step in range(steps):
        rows = kept[torch.randint(len(kept), (training.batch,))]
        optimiser.zero_grad()
        loss(network(x_RF[rows], training.dropout), rows).mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        if (step + 1) % max(1, steps // training.epochs) == 0:
            reached, weights = now()
            if reached < best:
                best, chosen = reached, weights
    torch.random.set_rng_state(rng_state)
    return Network(*moments, *chosen), f"loop {depth}: held-out loss {best:.6f}, of the constant {start:.6f}"


def _card(gathered: Gathered, kind: Literal["exit", "scale"], labels: str, notes: str) -> Card:
    sizes = {"questions": gathered.trace.questions, "positions": len(gathered.trace)}
    return Card(kind=kind, model=gathered.model, boundary=gathered.boundary, labels=labels, notes=notes, **sizes)


def save_head(head: Head, path: Path) -> Path:
    """Write a head as safetensors, whole or not at all."""
    assert head.card is not None
    tensors = {
        f"loop{depth}.{name}": tensor.contiguous()
        for depth, network in head.networks.items()
        for name, tensor in vars(network).items()
    }
    settings = {"threshold": head.threshold, "earliest": head.earliest} if isinstance(head, ExitHead) else {}
    with clear_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save(tensors, {"loopscope_head": head.card.model_copy(update=settings).model_dump_json()}))
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
            card = Card.model_validate_json((file.metadata() or {}).get("loopscope_head", ""))
            for loop in {name.partition(".")[0] for name in file.keys()}:  # noqa: SIM118
                parts = (file.get_tensor(f"{loop}.{field.name}").float() for field in dataclasses.fields(Network))
                networks[int(loop.removeprefix("loop"))] = Network(*parts)
    except (OSError, SafetensorError, ValidationError, ValueError) as error:
        raise LoopscopeError(f"{path} is not a head that loopscope wrote: {str(error).splitlines()[0]}") from None
    if not networks or min(networks) < 1 or not all(network.fits() for network in networks.values()):
        raise LoopscopeError(f"{path} is not a head that loopscope wrote: its tensors do not belong together")
    networks = dict(sorted(networks.items()))
    if card.kind == "scale":
        return ScaleHead(networks, card)
    return ExitHead(threshold=card.threshold, earliest=card.earliest, networks=networks, card=card)
