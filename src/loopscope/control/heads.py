"""Learned heads: when to stop and how far to step, from the states that are there at inference.

A head is a network of one hidden layer for every loop that it decides at. It reads

    H_t and D_t, each divided by its root mean square; log ‖H_t‖, log ‖D_t‖, cos(H_t, H_{t−1}), and of the step before
    log ‖D_{t−1}‖ and cos(D_t, D_{t−1})

standardised by the means and deviations of the train positions. Both kinds are policies. They compute their number from
the states while a model runs; over a trace they read it from a column that `annotate` adds.

`loopscope.control.train` has the labels and the training. Heads are kept as safetensors with a card in the metadata and
beside the file.

Shapes: R positions, D hidden width, F = 2D + 5 features.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from loopscope.control.gather import Gathered
from loopscope.control.policy import Array, Decision, Seen, ThresholdRule
from loopscope.control.signals import States, state_cosine, state_norm, step_cosine, step_norm
from loopscope.control.trace import Trace
from loopscope.errors import LoopscopeError

FEATURES = "H_t and D_t over their RMS; log|H_t|, log|D_t|, cos(H_t, H_{t-1}), log|D_{t-1}|, cos(D_t, D_{t-1})"
_TINY = 1e-12


def features(states: States) -> Tensor:
    """What heads read, float32 [R, F]; zero for what needs a state that is not there."""
    now = States(*(None if state is None else state.float() for state in states))  # type: ignore[arg-type]
    if now.before is None:
        raise LoopscopeError("a head reads the step D_t: it decides after the first loop at the earliest")
    before = States(now.before, now.earlier)
    scalars = (
        state_norm(now).clamp_min(_TINY).log(),
        step_norm(now).clamp_min(_TINY).log(),
        state_cosine(now),
        step_norm(before).clamp_min(_TINY).log(),
        step_cosine(now),
    )
    whole = [_normalised(now.now), _normalised(now.now - now.before), torch.stack(scalars, dim=1)]
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
        hidden_RK = torch.nn.functional.linear((x_RF - self.mean_F) / self.deviation_F, self.weight_KF, self.bias_K)
        found: Tensor = torch.nn.functional.gelu(hidden_RK) @ self.output_K + self.offset
        return found


@dataclass(frozen=True)
class Card:
    """Where a head comes from.

    Attributes:
        kind: "exit" or "scale".
        model: the model whose states it reads.
        boundary: where that state is taken.
        labels: what it was trained on.
        questions: train questions.
        positions: their reference positions.
        notes: what training found.
    """

    kind: str
    model: str
    boundary: str
    labels: str
    questions: int
    positions: int
    notes: str = ""

    def text(self) -> str:
        """A page that people read."""
        rows = [f"- {name}: {value}" for name, value in dataclasses.asdict(self).items() if value != ""]
        return "\n".join([f"# A learned {self.kind} head", "", *rows, f"- features: {FEATURES}", ""])


@dataclass(frozen=True)
class ExitHead(ThresholdRule):
    """Stops where the gain that going on is expected to bring is below a price.

    Attributes:
        networks: by loop; at a loop without one it goes on.
        card: where it comes from.
    """

    threshold: float = 0.0
    earliest: int = 1
    name: str = "exit head"
    networks: Mapping[int, Network] = dataclasses.field(default_factory=dict)
    card: Card | None = None
    signals: ClassVar[tuple[str, ...]] = ("exit_head",)

    def value(self, seen: Seen, memory: Any) -> Array:
        """The expected gain of going on."""
        if not seen.states:
            return seen.signal("exit_head")
        if seen.depth not in self.networks:
            return torch.full((seen.states[0].shape[0],), torch.nan)
        return self.networks[seen.depth](features(States(*seen.states)))


@dataclass(frozen=True)
class ScaleHead:
    """Takes the step to one loop at a scale of its own for every position, and reads there.

    Attributes:
        depth: that loop.
        network: its output, clipped to [0, 1], is the scale.
        card: where it comes from.
        stop: whether it stops there; if not, later steps are full.
    """

    depth: int
    network: Network
    card: Card | None = None
    stop: bool = True
    signals: ClassVar[tuple[str, ...]] = ("scale_head",)

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"scale head at {self.depth - 1}→{self.depth}"

    @property
    def earliest(self) -> int:
        """The loop that it decides at."""
        return self.depth

    def start(self, rows: int) -> None:
        """Nothing to remember."""

    def decide(self, seen: Seen, memory: None) -> Decision:
        """The scale, once the loop is reached."""
        if seen.depth != self.depth:
            return Decision()
        if not seen.states:
            return Decision(self.stop, seen.signal("scale_head"))
        return Decision(self.stop, self.scale(States(*seen.states)))

    def scale(self, states: States) -> Tensor:
        """The scale of the step that led to a state, [R]."""
        return self.network(features(states)).clamp(0, 1)


@torch.no_grad()
def annotate(gathered: Gathered, *heads: ExitHead | ScaleHead) -> Trace:
    """The trace with the numbers of heads as columns, so that they can be followed and fitted without a model."""
    columns = dict(gathered.trace.columns)
    for head in heads:
        column = np.full((len(gathered.trace), gathered.trace.loops), np.nan, dtype=np.float32)
        for depth in head.networks if isinstance(head, ExitHead) else (head.depth,):
            states = states_at(gathered, depth)
            found = head.networks[depth](features(states)) if isinstance(head, ExitHead) else head.scale(states)
            column[:, depth - 1] = found.numpy()
        columns[head.signals[0]] = column
    return dataclasses.replace(gathered.trace, columns=columns)


def states_at(gathered: Gathered, depth: int) -> States:
    """H_t, H_{t−1} and H_{t−2}, float32."""
    found = [torch.from_numpy(gathered.states[t]).float() for t in range(depth, max(depth - 3, -1), -1)]
    return States(*found)


def save_head(head: ExitHead | ScaleHead, path: str | Path) -> Path:
    """Write a head as safetensors, and its card as Markdown beside it."""
    if head.card is None:
        raise LoopscopeError("a head without a card is not kept: say where it comes from")
    networks = head.networks if isinstance(head, ExitHead) else {head.depth: head.network}
    tensors = {
        f"loop{depth}.{field.name}": getattr(network, field.name).contiguous()
        for depth, network in networks.items()
        for field in dataclasses.fields(network)
    }
    settings = (
        {"threshold": head.threshold, "earliest": head.earliest} if isinstance(head, ExitHead) else {"stop": head.stop}
    )
    written = Path(path).with_suffix(".safetensors")
    written.parent.mkdir(parents=True, exist_ok=True)
    about = {"card": dataclasses.asdict(head.card), "settings": settings, "features": FEATURES}
    save_file(tensors, written, metadata={"loopscope_head": json.dumps(about)})
    written.with_suffix(".md").write_text(head.card.text(), encoding="utf-8")
    return written


def load_head(path: str | Path) -> ExitHead | ScaleHead:
    """A head that `save_head` wrote.

    Raises:
        LoopscopeError: the file holds no head.
    """
    try:
        with safe_open(path, framework="pt") as file:
            described = (file.metadata() or {}).get("loopscope_head")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise LoopscopeError(f"{path} cannot be read as safetensors: {error}") from None
    if described is None:
        raise LoopscopeError(f"{path} holds no head of loopscope: give a file that save_head wrote")
    about = json.loads(described)
    card, settings = Card(**about["card"]), about["settings"]
    depths = sorted({int(name.partition(".")[0].removeprefix("loop")) for name in tensors})
    networks = {
        depth: Network(**{field.name: tensors[f"loop{depth}.{field.name}"] for field in dataclasses.fields(Network)})
        for depth in depths
    }
    if card.kind == "exit":
        return ExitHead(networks=networks, card=card, **settings)
    return ScaleHead(depths[0], networks[depths[0]], card, **settings)
