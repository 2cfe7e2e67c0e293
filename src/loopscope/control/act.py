"""Policies acting on a model: one batch through the loops, and whole tasks with their references (teacher-forced).

After loop t the policy sees H_t = F(H_{t−1}) and the states before, and decides. The state goes on as
H_{t−1} + scale · (H_t − H_{t−1}), and what is seen and computed later follows from that.

**The cache rule.** A position that stops has no keys and values past its last loop: deeper queries read those of its
last loop, whichever loop they are in. Copying them into all deeper slots is the same, and that is how it is done here.
Omega changes only what is read.

**Signals.** D_t = H_t − H_{t−1}, z_t logits, p_t = softmax(z_t), v = z_t − z_{t−1}. Names are the columns of
the table `trace`. States keep their dtype; softmaxes are those of `readout.softmax`.

Counted for every position: `loops`, where it stopped; `checks`, the times its logits were read to decide, those that
are read in the end not counted.

Shapes: B rows, S positions, D hidden width, V vocabulary, R positions, K key-value heads, P head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from loopscope.control.offline import Costs, Exits
from loopscope.control.policies import SIGNALS, Direction, Policy, Seen, decision_of
from loopscope.control.trace import Line, LineValues, Positions
from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.generate import can_cache
from loopscope.models.layers.positions import AttentionContext, LoopCache, seen_in_cache
from loopscope.models.protocol import Context, LoopedModel, exit_gate_of
from loopscope.models.walk import Walk, read
from loopscope.readout.softmax import Softmax, SoftmaxChange, log_probability
from loopscope.tasks.encoding import Example, Sequence

ReadAt = Callable[[Tensor, Tensor], Tensor]
"""Logits [R, V] of a state at positions [R, 2] of (row, position)."""
BATCH = 16
"""Sequences of a batch."""
CHUNK = 2048
"""Positions whose logits are held at a time."""


def of_states(name: str, states: list[Tensor]) -> Tensor:
    """A signal of H_t, H_{t−1} and H_{t−2}, as many as there are; NaN where it needs one that is not there."""
    needed, formula = _OF_STATES[name]
    return formula(*states[:needed]) if len(states) >= needed else _missing(states)


def _norm(x_RD: Tensor) -> Tensor:
    return x_RD.square().sum(dim=-1).sqrt()


def _cosine(a_RD: Tensor, b_RD: Tensor) -> Tensor:
    """NaN where one of the two is zero."""
    return (a_RD * b_RD).sum(dim=-1) / (_norm(a_RD) * _norm(b_RD))


_OF_STATES: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "state_norm": (1, _norm),  # ‖H_t‖
    "step_norm": (2, lambda now, before: _norm(now - before)),  # ‖D_t‖
    "state_cosine": (2, _cosine),  # cos(H_t, H_{t−1})
    "acceleration": (3, lambda now, before, earlier: _norm(now - 2 * before + earlier)),  # ‖D_t − D_{t−1}‖
    "step_cosine": (3, lambda now, before, earlier: _cosine(now - before, before - earlier)),  # cos(D_t, D_{t−1})
}
_OF_LOGITS: dict[str, Callable[[Softmax], Tensor]] = {
    "top_id": lambda p: p.top_id_n,  # the likeliest token
    "top_prob": lambda p: p.top_probability_n,  # p(1), the largest probability
    "margin": lambda p: p.margin_n,  # p(1) − p(2)
    "entropy": lambda p: p.entropy_n,  # −Σ p log p, in nats
}
_OF_CHANGE: dict[str, Callable[[SoftmaxChange], Tensor]] = {
    "kl_from_previous": lambda change: change.divergence_n,  # KL(p_{t−1} ‖ p_t)
    "kl_to_previous": lambda change: change.reverse_divergence_n,  # KL(p_t ‖ p_{t−1})
    "kl_min_p": lambda change: change.min_p_divergence_n,  # KL(p̃_{t−1} ‖ p̃_t), of floored p
    "mean_v": lambda change: change.mean_n,  # E_{p_{t−1}}[v]
    "var_v": lambda change: change.variance_n,  # Var_{p_{t−1}}(v); under an affine readout Q = −var_v / 2
}

Logits = Callable[[int], Tensor | None]
"""The logits [R, V] after a loop, by depth; None where there are none (before the first loop)."""


def live(depth: int, states: list[Tensor], logits: Logits, gate: Tensor | None = None) -> Seen:
    """What a policy is shown of R positions after a loop; each signal is computed when it is first asked for.

    `logits` is called once for every depth that a signal needs; whoever gives it counts its calls as checks.
    """

    @cache
    def softmax(wanted: int) -> Softmax | None:
        logits_RV = logits(wanted) if wanted >= 1 else None
        return None if logits_RV is None else Softmax(logits_RV)

    @cache
    def signal(name: str) -> Tensor:
        found: Tensor | None = gate
        if name in _OF_STATES:
            found = of_states(name, states)
        elif name in _OF_LOGITS:
            now = softmax(depth)
            found = None if now is None else _OF_LOGITS[name](now)
        elif name in _OF_CHANGE:
            before, now = softmax(depth - 1), softmax(depth)
            found = None if before is None or now is None else _OF_CHANGE[name](SoftmaxChange(before, now))
        elif name != "gate":
            raise LoopscopeError(f"there is no signal {name!r}: choose from {', '.join(SIGNALS)}")
        return _missing(states) if found is None else found

    return Seen(depth, tuple(states), signal)


def _missing(states: list[Tensor]) -> Tensor:
    return torch.full_like(states[0][:, 0], torch.nan)


def keeping_keys(model: LoopedModel) -> Any:
    """The model, which must keep keys and values for a policy to act on it."""
    if not can_cache(model):
        raise LoopscopeError(f"{model.name} keeps no keys and values, which a policy that acts on a model needs")
    return model


def _change(z_RV: Tensor, reference_RV: Tensor | None, direction: Direction) -> Tensor:
    """The change u along a direction; logits are centred before they are compared as vectors."""
    u_RV = z_RV
    if reference_RV is not None and direction != "temperature":
        u_RV = z_RV - reference_RV
        if direction == "orthogonal":
            centred_RV, u_RV = (x - x.mean(-1, keepdim=True) for x in (z_RV, u_RV))
            along_R = (u_RV * centred_RV).sum(-1) / centred_RV.square().sum(-1).clamp_min(1e-12)
            u_RV = u_RV - along_R[:, None] * centred_RV
    return u_RV


class Acted:
    """An embedded batch taken to the loop where its last position stops, and what became of it.

    Attributes:
        context: what the batch was embedded to.
        state_BSD: what is read.
        loops_BS: the loop after which each position stopped.
        checks_BS: times that its logits were read to decide.
        omega_BS: how far beyond that loop its logits are read.
    """

    def __init__(
        self, model: LoopedModel, context: Context, policy: Policy, loops: int, cache: LoopCache, read_at: ReadAt
    ) -> None:
        self._gate = exit_gate_of(model)
        if loops < 1:
            raise LoopscopeError(f"a policy needs at least one loop, not {loops}")
        if "gate" in policy.signals and self._gate is None:
            raise LoopscopeError(f"{model.name} has no exit gate, which the policy {policy.name!r} reads")
        around = context.extra
        assert isinstance(around, AttentionContext)
        assert around.cache_positions is not None
        if around.mask is None:
            # The queries of a first pass read the cache, too, which may hold other entries than were just made.
            mask = seen_in_cache(cache, around.cache_positions)
            context = dataclasses.replace(context, extra=dataclasses.replace(around, mask=mask))
        self.context, self._policy, self._cache, self._read_at = context, policy, cache, read_at
        mask_BS = context.batch.attention_mask
        self._where_R2, self._loops = mask_BS.nonzero(), loops
        self._walk, self.state_BSD = Walk(model, context), context.state
        self._before_BSD: Tensor | None = None
        self._reference_BSD = self.state_BSD if policy.reference == 0 else None
        self._stopped_BS = torch.zeros_like(mask_BS)
        self.loops_BS = torch.zeros(mask_BS.shape, dtype=torch.int64, device=mask_BS.device)
        self.checks_BS, self.omega_BS = self.loops_BS.clone(), self.loops_BS.float()
        self._logits: dict[int, Tensor] = {}
        self._memory: dict[str, Any] = {}
        for depth in range(1, loops + 1):
            self._decide(depth, self._step(depth))
            if policy.reference == depth:
                self._reference_BSD = self.state_BSD
                self.checks_BS += (depth not in self._logits) & ~self._stopped_BS
            if bool(self._stopped_BS[mask_BS].all()):
                break
        cache.stop(around.cache_positions)

    def logits(self, where_N2: Tensor) -> Tensor:
        """What is read at positions, [N, V]."""
        omega_N = self.omega_BS[*where_N2.to(self.omega_BS.device).T]
        if not bool(omega_N.any()):
            return self._read_at(self.state_BSD, where_N2)
        # The final state is read last: a readout that attends keeps the keys that it wrote last.
        reference_NV = None if self._reference_BSD is None else self._read_at(self._reference_BSD, where_N2)
        z_NV = self._read_at(self.state_BSD, where_N2)
        return z_NV + omega_N[:, None] * _change(z_NV, reference_NV, self._policy.direction)

    def _step(self, depth: int) -> Tensor:
        """H_t proposed for every position."""
        before, kept = self.state_BSD, self._stopped_BS[..., None]
        self._walk = self._walk.changed(before)
        self._walk.depth = depth - 1
        self._cache.enter(depth, self._stopped_BS)
        made = self._walk.advance()
        self._cache.leave()
        self.loops_BS += ~self._stopped_BS
        return torch.where(kept, before, made)

    def _decide(self, depth: int, made: Tensor) -> None:
        """The policy's decision, carried out."""
        before, at = self.state_BSD, self._where_R2.unbind(1)
        going_R = ~self._stopped_BS[at]

        def logits(wanted: int) -> Tensor:
            """After a loop, [R, V]; every position that is still on its way is charged a check."""
            if wanted not in self._logits:
                self._logits = {known: z for known, z in self._logits.items() if known >= depth - 1}
                self._logits[wanted] = self._read_at(made if wanted == depth else before, self._where_R2).float()
                self.checks_BS[at] += going_R
            return self._logits[wanted]

        def each(value: Any, dtype: torch.dtype) -> Tensor:
            return torch.as_tensor(value, dtype=dtype, device=made.device).expand(len(going_R))

        chance = None if self._gate is None else torch.sigmoid(self._gate.logits(made, None)[at]).float()
        states = [state[at].float() for state in (made, before, self._before_BSD) if state is not None]
        decision = decision_of(self._policy, live(depth, states, logits, chance), self._memory, len(going_R))
        scale_R = torch.where(going_R, each(decision.scale, made.dtype), 1.0)
        scaled_R, was_read = scale_R != 1, depth in self._logits
        if bool(scaled_R.any()):
            made = made.clone()
            between_RD = before[at] + scale_R[:, None] * (made[at] - before[at])
            made[at] = torch.where(scaled_R[:, None], between_RD, made[at])
            self._logits.pop(depth, None)  # they were those of the full step
        self._before_BSD, self.state_BSD = before, made
        stops_R = going_R & each(decision.stop, torch.bool) & (depth >= self._policy.earliest)
        stops_R = going_R if depth == self._loops else stops_R
        if was_read:
            self.checks_BS[at] -= (stops_R & ~scaled_R).long()  # these logits are the answer's
        self.omega_BS[at] = torch.where(stops_R, each(decision.omega, torch.float32), self.omega_BS[at])
        self._stopped_BS[at] |= stops_R


def act_on(model: LoopedModel, batch: Batch, policy: Policy, loops: int, dtype: torch.dtype | None = None) -> Acted:
    """A policy on whole sequences at once, padded on the right, up to `loops` loops; `dtype` is that of readouts."""
    ids = batch.input_ids
    cache = LoopCache(ids.shape[1])
    cache.used = ids.shape[1]
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    context = keeping_keys(model).embed(dataclasses.replace(batch, position_ids=positions), cache)
    # The whole sequence is here, so the ordinary readout serves: it needs no cache of its own.
    return Acted(model, context, policy, loops, cache, lambda state, where: read(model, state, where, dtype, context))


@dataclasses.dataclass(frozen=True)
class Questions(Positions):
    """The reference positions of encoded questions, in the order of a trace of them."""

    sequences: tuple[tuple[int, Sequence], ...]
    """Every sequence with the source row of its question."""

    @classmethod
    def of(cls, examples: Iterable[Example]) -> Questions:
        """Those of examples of one task."""
        examples = list(examples)
        found = [
            # Of solutions every sequence is the right one.
            (number, example.answer in (None, option), example.source_row, sequence)
            for number, example in enumerate(examples)
            for option, sequence in enumerate(example.sequences)
        ]
        question_S = np.array([number for number, *_ in found], dtype=np.int64)
        lengths = [len(sequence.positions) for *_, sequence in found]
        return cls(
            question_R=np.repeat(question_S, lengths),
            sequence_R=np.repeat(np.arange(len(found)), lengths),
            target_R=np.concatenate([np.asarray(sequence.targets, dtype=np.int64) for *_, sequence in found]),
            question_S=question_S,
            right_S=np.array([right for _, right, *_ in found]),
            ids=tuple(one.id for one in examples),
            is_options=examples[0].answer is not None,
            sequences=tuple((row, sequence) for *_, row, sequence in found),
        )

    def batches(self, device: torch.device, size: int = BATCH) -> Iterator[tuple[Batch, Tensor, Any]]:
        """Sequences of about one length, where in them references are predicted, [N, 2], and which positions, [N]."""
        order = np.argsort([len(sequence.token_ids) for _, sequence in self.sequences], kind="stable")
        for first in range(0, len(order), size):
            chosen = order[first : first + size].tolist()
            rows, sequences = zip(*(self.sequences[i] for i in chosen), strict=True)
            batch = Batch.from_rows([list(sequence.token_ids) for sequence in sequences], source_rows=list(rows))
            places = [(row, place) for row, sequence in enumerate(sequences) for place in sequence.positions]
            at_N = np.concatenate([np.flatnonzero(self.sequence_R == i) for i in chosen])
            yield batch.to(device), torch.tensor(places, dtype=torch.int64, device=device), at_N


def readout_dtype(model: LoopedModel) -> torch.dtype | None:
    """At least float32, as in a measurement."""
    return torch.float32 if model.dtype.itemsize < 4 else None


@torch.no_grad()
def act(model: LoopedModel, questions: Questions, policy: Policy, loops: int) -> Exits:
    """What a policy does with the references of a task, up to `loops` loops."""
    found = {name: np.zeros(len(questions)) for name in ("depth", "checks", "omega", "log_prob", "correct")}
    for batch, where_N2, at_N in questions.batches(model.device):
        acted = act_on(model, batch, policy, loops, readout_dtype(model))
        targets_N = torch.from_numpy(questions.target_R[at_N]).to(model.device)
        for here in (slice(part, part + CHUNK) for part in range(0, len(at_N), CHUNK)):
            where, target_N = where_N2[here], targets_N[here]
            z_NV = acted.logits(where).double()
            counts = (grid[*where.T] for grid in (acted.loops_BS, acted.checks_BS, acted.omega_BS))
            values = (*counts, log_probability(z_NV, target_N), z_NV.argmax(-1) == target_N)
            for column, value in zip(found.values(), values, strict=True):
                column[at_N[here]] = value.cpu().numpy()
    depth_R, checks_R = (found[name].astype(np.int64) for name in ("depth", "checks"))
    return Exits(depth_R, checks_R, found["log_prob"], found["correct"], np.ones(len(questions)), found["omega"])


@torch.no_grad()
def measure_lines(
    model: LoopedModel,
    questions: Questions,
    pairs: Iterable[tuple[int, int]],
    omega_J: Iterable[float],
    done: Callable[[int, int], object] = lambda sequences, tokens: None,
) -> dict[Line, LineValues]:
    """The log probabilities of references along scaled readouts k > R and their controls, for every pair (k, R).

    `done` is called after every batch with its sequences and tokens.
    """
    pairs, omega_J = sorted(pairs), np.asarray(list(omega_J))
    lines = [Line(direction, k, depth) for k, depth in pairs for direction in ("chord", "orthogonal")]
    lines += [Line("temperature", None, depth) for depth in sorted({depth for _, depth in pairs})]
    found = {line: np.zeros((len(questions), len(omega_J))) for line in lines}
    size = CHUNK if model.device.type == "cuda" else 128  # small enough for a CPU's cache
    for batch, where_N2, at_N in questions.batches(model.device):
        walk = Walk.of(model, batch)
        ends = sorted({end for pair in pairs for end in pair})
        logits = {depth: walk.to(depth).read(where_N2, readout_dtype(model)) for depth in ends}
        target_N = torch.from_numpy(questions.target_R[at_N]).to(model.device)
        for line, column in found.items():
            reference_NV = None if line.reference is None else logits[line.reference]
            u_NV = _change(logits[line.depth], reference_NV, line.direction)
            for here in (slice(part, part + size) for part in range(0, len(at_N), size)):
                z_NV, target = logits[line.depth][here], target_N[here]
                for place, omega in enumerate(torch.as_tensor(omega_J, dtype=torch.float32)):
                    moved_NV = (z_NV + omega.to(z_NV.device) * u_NV[here]).double()
                    column[at_N[here], place] = log_probability(moved_NV, target).cpu().numpy()
        done(len(batch.input_ids), int(batch.attention_mask.sum()))
    return {line: LineValues(omega_J, column) for line, column in found.items()}


@torch.no_grad()
def costs_of(model: LoopedModel) -> Costs:
    """Counted over one token, in multiplications: what `embed` and `readout` take, over what `step` takes."""
    batch = Batch.from_rows([[0]]).to(model.device)
    embedded, walk = _counted(lambda: Walk.of(model, batch))
    stepped, _ = _counted(walk.advance)
    position = torch.zeros((1, 2), dtype=torch.int64, device=model.device)
    read_out, _ = _counted(lambda: walk.read(position))
    return Costs((embedded + read_out) / stepped, read_out / stepped) if stepped else Costs()


def _counted(call: Callable[[], Any]) -> tuple[int, Any]:
    with FlopCounterMode(display=False) as counter:
        made = call()
    return counter.get_total_flops(), made
