"""The looped model as the rest of loopscope sees it: embed, step, readout (Section 3 of the paper).

H_0 = embed(batch), H_{t+1} = step(H_t), logits_t = readout(H_t). Whatever implements `LoopedModel` can be
measured; `base.LoopedModule` supplies most of it to an `nn.Module`.

`step` and `readout` may know more than their state. What they ask for by the name of a parameter arrives as a keyword;
`walk` is the one place that gives it:

    step(state, context, *, depth)      the number of steps done before this one, 0 for the first
    step(state, context, *, carry)      what the model carries along next to the measured state; such a step returns
                                        (state, carry), and the first one is given None or `Context.carry`
    readout(state, positions, dtype, *, context)
    body_and_head(dtype, *, context)    the context of the rows that are read

A model may have an exit gate (`ExitGate`), which says how likely it is that a loop is the last, at every position:

    λ_t = sigmoid(gate(H_t)) at every position, for t = 1 … T, the depths of a budget

    "cdf"         p_t = λ_t · Π_{j<t} (1 − λ_j)  (the last p takes the remainder),   c_t = p_1 + … + p_t,
                  exit depth = the first t with c_t ≥ threshold, else T
    "threshold"   exit depth = the first t with λ_t > threshold, else T

The arithmetic of the gate is that of the logits given. A published policy runs in the model's dtype; in BF16 the
cumulative sum can round up to 1 before the last loop, so that "threshold 1" is not "the last loop". The same
decisions in float64 come from float64 logits (`gate.logits(state, torch.float64)`).

Whoever records decisions asks the model for its `exit_gate` (`exit_gate_of`) and needs to know nothing else of it.

Shapes: T loops, B rows, S positions, D hidden width, V vocabulary, N selected positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from loopscope.models.batch import Batch


class AffineHead(NamedTuple):
    """Logits that are affine in the state: `state @ weight_VD.T + bias_V`."""

    weight_VD: Tensor
    bias_V: Tensor | None = None


@dataclass(frozen=True)
class BodyAndHead:
    """A readout as two maps, the last of them affine; calling it gives the logits.

    Whoever needs the logits of many positions takes the body once and the head a few positions at a time.

    Attributes:
        body: from a state [B, S, D] and positions [N, 2] to what the head reads, [N, D'].
        head: from some rows of that to their logits, [n, D'] → [n, V].
        vocabulary: V.
        matrix: gives the head's matrix [V, D'], where the head is a product with it and nothing else; None elsewhere.
    """

    body: Callable[[Tensor, Tensor | None], Tensor]
    head: Callable[[Tensor], Tensor]
    vocabulary: int
    matrix: Callable[[], Tensor] | None = None

    def __call__(self, state: Tensor, positions: Tensor | None = None) -> Tensor:
        """The logits."""
        return self.head(self.body(state, positions))


@dataclass(frozen=True)
class Context:
    """What stays fixed while one batch is stepped.

    Attributes:
        state: H_0, [B, S, D].
        batch: the batch it was made from.
        injection: what every step reads besides the state (Huginn's embedded input), [B, S, D].
        extra: the family's own; nobody else looks at it.
        carry: what the first step is given as `carry`, if it asks for that.
        rowwise: tensors [B, …] of the family's own that steps and readouts read, by name. A readout may be asked about
            some of the rows alone; state, batch, injection and these are cut to them, everything else is passed on.
    """

    state: Tensor
    batch: Batch
    injection: Tensor | None = None
    extra: Any = None
    carry: Any = None
    rowwise: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    def rows(self, index: slice | Tensor) -> Context:
        """The context of some of the rows: a slice, or their numbers."""
        return dataclasses.replace(
            self,
            state=self.state[index],
            batch=self.batch.rows(index),
            injection=None if self.injection is None else self.injection[index],
            rowwise={name: tensor[index] for name, tensor in self.rowwise.items()},
        )


@runtime_checkable
class LoopedModel(Protocol):
    """A model whose depth is how often one map is applied.

    Attributes:
        family: "ouro", "huginn", …
        name: what the user called it.
        hidden_size: D.
        vocabulary_size: V.
        trained_depth: the number of loops it was trained for.
        boundary: one phrase that says where in the model the state is taken.
        head: the affine head where logits are affine in the state, else None.
    """

    family: str
    name: str
    hidden_size: int
    vocabulary_size: int
    trained_depth: int
    boundary: str

    @property
    def head(self) -> AffineHead | None:
        """The affine head, or None where the readout is nonlinear."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The arithmetic of embed and step."""
        ...

    def embed(self, batch: Batch) -> Context:
        """H_0 and what every step needs besides the state."""
        ...

    def step(self, state: Tensor, context: Context, *args: Any, **kwargs: Any) -> Any:
        """H_{t+1} from H_t, [B, S, D] → [B, S, D]; may ask for `depth` and `carry`."""
        ...

    def readout(
        self,
        state: Tensor,
        positions: Tensor | None = None,
        dtype: torch.dtype | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Logits of a state: [B, S, V], or [N, V] at `positions` [N, 2] of (row, position); may ask for `context`.

        `dtype` is the arithmetic of the readout, the model's own when left out. TF32 is the caller's to
        switch off (`torch.backends.cuda.matmul.allow_tf32`).
        """
        ...

    def states(self, batch: Batch, depths: Iterable[int]) -> dict[int, Tensor]:
        """The states at the depths asked for, in one pass to the deepest; nothing else is kept."""
        ...


def select(state: Tensor, positions: Tensor | None) -> Tensor:
    """The states at `positions` [N, 2] of (row, position), [N, D]; all of them where None."""
    if positions is None:
        return state
    where = positions.to(state.device)
    return state[where[:, 0], where[:, 1]]


@dataclass(frozen=True)
class ExitGate:
    """A model's exit gate and the policy of its checkpoint.

    Attributes:
        logits: the gate before its sigmoid: from a state [B, S, D] and the arithmetic (None for its own) to [B, S].
        threshold: the policy's own.
        budget: T; what is deeper does not count.
        rule: "cdf" or "threshold".
    """

    logits: Callable[[Tensor, torch.dtype | None], Tensor]
    threshold: float
    budget: int
    rule: Literal["cdf", "threshold"] = "cdf"

    def compared(self, gate_logits: Sequence[Tensor]) -> Tensor:
        """What the rule compares with its threshold, [..., T], from the logits at depths 1..T, each [...]."""
        if self.rule == "cdf":
            return torch.cumsum(exit_probabilities(gate_logits), dim=-1)
        return torch.sigmoid(torch.stack(list(gate_logits), dim=-1))

    def exit_depth(self, compared: Tensor, threshold: float | None = None) -> Tensor:
        """Where the policy stops (1..T), int64 [...]."""
        limit = self.threshold if threshold is None else threshold
        reached = compared >= limit if self.rule == "cdf" else compared > limit
        first = reached.to(torch.int64).argmax(dim=-1)
        return torch.where(reached.any(dim=-1), first + 1, reached.shape[-1])


def exit_gate_of(model: object) -> ExitGate | None:
    """The gate of a model that has one."""
    gate = getattr(model, "exit_gate", None)
    return gate if isinstance(gate, ExitGate) else None


def exit_probabilities(gate_logits: Sequence[Tensor]) -> Tensor:
    """p_t over the depths 1..T of one budget, [..., T], from the gate's logits at each, [...], in their own dtype.

    >>> exit_probabilities([torch.zeros(1)] * 3).tolist()
    [[0.5, 0.25, 0.25]]
    """
    stop = [torch.sigmoid(logits) for logits in gate_logits]
    remaining = torch.ones_like(stop[0])
    found = []
    for chance in stop[:-1]:
        found.append(chance * remaining)
        remaining = remaining * (1.0 - chance)
    return torch.stack([*found, remaining], dim=-1)


def state_at_exit(states: Sequence[Tensor], depth: Tensor) -> Tensor:
    """The states [B, S, D] at each position's own exit depth (1..T), from the states at depths 1..T."""
    stacked = torch.stack(list(states), dim=-2)
    index = (depth - 1)[..., None, None].expand(*depth.shape, 1, stacked.shape[-1])
    return stacked.gather(-2, index)[..., 0, :]
