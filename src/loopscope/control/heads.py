"""Learned heads: when to stop and how far to step, from the states that are there at inference.

A head is a network of one hidden layer for every loop that it decides at. It reads

    H_t and D_t, each divided by its root mean square; log ‖H_t‖, log ‖D_t‖, cos(H_t, H_{t−1}), and of the step before
    log ‖D_{t−1}‖ and cos(D_t, D_{t−1})

standardised by the means and deviations of the train positions. Both kinds are policies. They compute their number from
the states while a model runs; over a trace they read it from a column that `annotate` adds.

`loopscope.control.train` has the labels and the training. Heads are kept as safetensors with a card in the metadata and
beside the file.

A stored trace has no states: D numbers for every position and loop are too many to keep beside a run. `gather` makes
one pass of the model over the encoded examples of a trace, of one sequence each, and keeps the states in memory, in
half precision: heads normalise them anyway.

Shapes: R positions, T loops, D hidden width, F = 2D + 5 features.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from loopscope.control.policy import Array, Decision, Seen
from loopscope.control.rules import ThresholdRule
from loopscope.control.signals import of_states
from loopscope.control.trace import Trace
from loopscope.errors import LoopscopeError
from loopscope.measuring.rerun import Named, Sources
from loopscope.models.batch import Batch
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk
from loopscope.store.run import StoredRun
from loopscope.tasks.encoding import Example

FEATURES = "H_t and D_t over their RMS; log|H_t|, log|D_t|, cos(H_t, H_{t-1}), log|D_{t-1}|, cos(D_t, D_{t-1})"
_TINY = 1e-12
BATCH = 16
"""Sequences of a batch of `gather`."""


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
def gather(model: LoopedModel, examples: Sequence[Example], trace: Trace) -> Gathered:
    """The states of a trace, whose questions the examples are, in its order."""
    if not examples or any(example.answer is not None for example in examples):
        raise LoopscopeError("heads learn from tasks with reference solutions: give examples of such a task")
    sequences = [example.sequences[0] for example in examples]
    order = np.argsort([len(sequence.token_ids) for sequence in sequences], kind="stable")
    parts: list[NDArray[Any]] = [np.empty(0)] * len(sequences)
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH].tolist()
        batch = Batch.from_rows(
            [list(sequences[i].token_ids) for i in chosen], source_rows=[examples[i].source_row for i in chosen]
        )
        counts = [len(sequences[i].positions) for i in chosen]
        places = np.concatenate([sequences[i].positions for i in chosen])
        at = torch.from_numpy(np.stack([np.repeat(np.arange(len(chosen)), counts), places])).to(model.device)
        walk = Walk.of(model, batch.to(model.device))
        states = [walk.state[*at].half(), *(walk.advance()[*at].half() for _ in range(trace.loops))]
        split = np.split(torch.stack(states).cpu().numpy(), np.cumsum(counts)[:-1], axis=1)
        for i, part in zip(chosen, split, strict=True):
            parts[i] = part
    return Gathered(trace, np.concatenate(parts, axis=1), model.name, model.boundary)


def gathered_of(run: StoredRun, named: Named, task: str, split: str, trace: Trace) -> Gathered:
    """The states of one task of a run, in the order of its trace.

    Raises:
        LoopscopeError: the model or the questions are not those of the run, or cannot be found.
    """
    sources = Sources.of(run, named)
    sources.check()
    planned = next(t for t in sources.prepared.tasks if (t.task.name, t.task.split) == (task, split))
    encoder = sources.encoder(spans=False, share=False)
    examples = [question.example for question in encoder.questions(planned.task, planned.rows, 0)]
    return gather(sources.model, examples, trace)


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

    name: str = "exit head"
    threshold: float = 0.0
    signals: tuple[str, ...] = ("exit_head",)
    earliest: int = 1
    networks: Mapping[int, Network] = dataclasses.field(default_factory=dict)
    card: Card | None = None

    def value(self, seen: Seen, memory: Any) -> Array:
        """The expected gain of going on."""
        if not seen.states:
            return seen.signal("exit_head")
        if seen.depth not in self.networks:
            return torch.full((seen.states[0].shape[0],), torch.nan)
        return self.output(seen.depth, seen.states)

    def output(self, depth: int, states: Sequence[Tensor]) -> Tensor:
        """The same, from states, [R]."""
        return self.networks[depth](features(states))


@dataclass(frozen=True)
class ScaleHead:
    """Takes the step to one loop at a scale of its own for every position, and stops there.

    Attributes:
        networks: by loop, of which there is one; the output, clipped to [0, 1], is the scale.
        card: where it comes from.
    """

    networks: Mapping[int, Network]
    card: Card | None = None
    signals: ClassVar[tuple[str, ...]] = ("scale_head",)

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"scale head at {self.earliest - 1}→{self.earliest}"

    @property
    def earliest(self) -> int:
        """The loop that it decides at."""
        return min(self.networks)

    def start(self, rows: int) -> None:
        """Nothing to remember."""

    def decide(self, seen: Seen, memory: None) -> Decision:
        """The scale, once the loop is reached."""
        if seen.depth != self.earliest:
            return Decision()
        return Decision(True, self.output(seen.depth, seen.states) if seen.states else seen.signal("scale_head"))

    def output(self, depth: int, states: Sequence[Tensor]) -> Tensor:
        """The scale of the step that led to a state, [R]."""
        return self.networks[depth](features(states)).clamp(0, 1)


@torch.no_grad()
def annotate(gathered: Gathered, *heads: ExitHead | ScaleHead) -> Trace:
    """The trace with the numbers of heads as columns, so that they can be followed and fitted without a model."""
    columns = dict(gathered.trace.columns)
    for head in heads:
        column = np.full((len(gathered.trace), gathered.trace.loops), np.nan, dtype=np.float32)
        for depth in head.networks:
            column[:, depth - 1] = head.output(depth, states_at(gathered, depth)).numpy()
        columns[head.signals[0]] = column
    return dataclasses.replace(gathered.trace, columns=columns)


def states_at(gathered: Gathered, depth: int) -> list[Tensor]:
    """H_t, H_{t−1} and H_{t−2}, float32."""
    return [torch.from_numpy(gathered.states[t]).float() for t in range(depth, max(depth - 3, -1), -1)]


def save_head(head: ExitHead | ScaleHead, path: str | Path) -> Path:
    """Write a head as safetensors, and its card as Markdown beside it."""
    if head.card is None:
        raise LoopscopeError("a head without a card is not kept: say where it comes from")
    tensors = {
        f"loop{depth}.{field.name}": getattr(network, field.name).contiguous()
        for depth, network in head.networks.items()
        for field in dataclasses.fields(network)
    }
    settings = {"threshold": head.threshold, "earliest": head.earliest} if isinstance(head, ExitHead) else {}
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
    card = Card(**about["card"])
    networks = {
        depth: Network(**{field.name: tensors[f"loop{depth}.{field.name}"] for field in dataclasses.fields(Network)})
        for depth in sorted({int(name.partition(".")[0].removeprefix("loop")) for name in tensors})
    }
    if card.kind == "exit":
        return ExitHead(networks=networks, card=card, **about["settings"])
    return ScaleHead(networks, card)
