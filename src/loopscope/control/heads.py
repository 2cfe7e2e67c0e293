"""Learned heads: when to stop and how far to step, from the states that are there at inference.

A head is a network of one hidden layer for every loop that it decides at. It reads

    H_t and D_t, each divided by its root mean square; log ‖H_t‖, log ‖D_t‖, cos(H_t, H_{t−1}), and of the step before
    log ‖D_{t−1}‖ and cos(D_t, D_{t−1})

standardised by the means and deviations of the train positions. Both kinds are policies. They compute their number from
the states while a model runs; over a trace they read it from a column that `annotate` adds.

`loopscope.control.train` has the labels and the training. Heads are kept as safetensors with a card in the metadata. A
stored trace has no states; `gather` makes one pass of the model over its examples and keeps them, in half precision.

Shapes: R positions, T loops, D hidden width, F = 2D + 5 features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from loopscope.control.act import Questions
from loopscope.control.policy import Array, Decision, Policy, Seen
from loopscope.control.rules import ThresholdRule
from loopscope.control.signals import of_states
from loopscope.control.trace import Trace
from loopscope.errors import LoopscopeError
from loopscope.models.checkpoint.config import MOST_LOOPS
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk
from loopscope.regular_files import check_regular
from loopscope.store.atomic import write_atomically

_TINY = 1e-12


@dataclass(frozen=True)
class Gathered:
    """A trace and its states.

    Attributes:
        trace: as it was recorded.
        states: H_0 … H_T at the reference positions, float16, [T + 1, R, D].
        model: the model's name.
        boundary: where its state is taken.
    """

    trace: Trace
    states: NDArray[np.float16]
    model: str
    boundary: str


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
    if len(now) < 2:
        raise LoopscopeError("a head reads the step D_t: it decides after the first loop at the earliest")
    scalars = (
        of_states("state_norm", now).clamp_min(_TINY).log(),
        of_states("step_norm", now).clamp_min(_TINY).log(),
        of_states("state_cosine", now),
        of_states("step_norm", now[1:]).clamp_min(_TINY).log(),
        of_states("step_cosine", now),
    )
    whole = [_normalised(now[0]), _normalised(now[0] - now[1]), torch.stack(scalars, dim=1)]
    return torch.cat(whole, dim=1).nan_to_num(0.0)


def _normalised(x_RD: Tensor) -> Tensor:
    return x_RD / x_RD.square().mean(dim=-1, keepdim=True).sqrt().clamp_min(_TINY)


@dataclass(frozen=True)
class Network:
    """One hidden layer: w·gelu(W·(x − mean)/deviation + b) + c."""

    mean_F: Tensor
    deviation_F: Tensor
    weight_KF: Tensor
    bias_K: Tensor
    output_K: Tensor
    offset: Tensor

    def __call__(self, x_RF: Tensor) -> Tensor:
        """The output, [R]."""
        if x_RF.shape[1] != len(self.mean_F):
            raise LoopscopeError(f"this head reads {len(self.mean_F)} features, and the model has {x_RF.shape[1]}")
        weights = {field.name: getattr(self, field.name).to(x_RF.device) for field in dataclasses.fields(self)}
        x_RF = (x_RF - weights["mean_F"]) / weights["deviation_F"]
        hidden_RK = torch.nn.functional.linear(x_RF, weights["weight_KF"], weights["bias_K"])
        found: Tensor = torch.nn.functional.gelu(hidden_RK) @ weights["output_K"] + weights["offset"]
        return found

    def fits(self) -> bool:
        """Whether its shapes belong together."""
        hidden, width = self.weight_KF.shape if self.weight_KF.dim() == 2 else (-1, -1)
        vectors = ((self.mean_F, width), (self.deviation_F, width), (self.bias_K, hidden), (self.output_K, hidden))
        return self.offset.shape == () and all(vector.shape == (size,) for vector, size in vectors)


class Card(BaseModel):
    """Where a head comes from.

    Attributes:
        kind: "exit" or "scale".
        model: the model whose states it reads.
        boundary: where that state is taken.
        labels: what it was trained on.
        questions: train questions.
        positions: their reference positions.
        notes: what training found.
        threshold: of an exit head.
        earliest: of an exit head.
    """

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
    """Stops where the gain that going on is expected to bring is below a price.

    Attributes:
        networks: by loop; at a loop without one it goes on.
        card: where it comes from.
    """

    name: str = "exit head"
    signals: tuple[str, ...] = ("exit_head",)
    earliest: int = 1
    networks: Mapping[int, Network] = dataclasses.field(default_factory=dict)
    card: Card | None = None

    def value(self, seen: Seen, memory: Any) -> Array:
        """The expected gain of going on."""
        if not seen.states:
            return seen.signal("exit_head")
        if seen.depth not in self.networks:
            return torch.full((seen.states[0].shape[0],), torch.nan, device=seen.states[0].device)
        return self.output(seen.depth, seen.states)

    def output(self, depth: int, states: Sequence[Tensor]) -> Tensor:
        """The same, from states, [R]."""
        return self.networks[depth](features(states))


@dataclass(frozen=True)
class ScaleHead(Policy):
    """Takes the step to one loop at a scale of its own for every position, and stops there.

    Attributes:
        networks: by loop, of which there is one; the output, clipped to [0, 1], is the scale.
        card: where it comes from.
    """

    networks: Mapping[int, Network]
    card: Card | None = None
    signals: ClassVar[tuple[str, ...]] = ("scale_head",)  # type: ignore[misc]

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
        """The scale of the step that led to a state, [R]."""
        return self.networks[depth](features(states)).clamp(0, 1)


Head = ExitHead | ScaleHead


@torch.no_grad()
def annotate(gathered: Gathered, *heads: Head) -> Trace:
    """The trace with the numbers of heads as columns, so that they can be followed and fitted without a model."""
    columns = dict(gathered.trace.columns)
    for head in heads:
        column = np.full((len(gathered.trace), gathered.trace.loops), np.nan, dtype=np.float32)
        for depth in head.networks:
            if depth <= gathered.trace.loops:
                column[:, depth - 1] = head.output(depth, states_at(gathered, depth)).numpy()
        columns[head.signals[0]] = column
    return dataclasses.replace(gathered.trace, columns=columns)


def states_at(gathered: Gathered, depth: int) -> list[Tensor]:
    """H_t, H_{t−1} and H_{t−2}, float32."""
    return [torch.from_numpy(gathered.states[t]).float() for t in range(depth, max(depth - 3, -1), -1)]


def save_head(head: Head, path: Path) -> Path:
    """Write a head as safetensors, whole or not at all."""
    assert head.card is not None
    tensors = {
        f"loop{depth}.{field.name}": getattr(network, field.name).contiguous()
        for depth, network in head.networks.items()
        for field in dataclasses.fields(network)
    }
    settings = {"threshold": head.threshold, "earliest": head.earliest} if isinstance(head, ExitHead) else {}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LoopscopeError(f"{path.parent} cannot hold heads: {error.strerror}; give a folder") from None
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
