"""A policy acting on states: one batch through the loops, every position with the scale and the stop that it is given.

After loop t the policy sees H_t = F(H_{t−1}) beside the states before, and decides. The state goes on as
H_{t−1} + scale · (H_t − H_{t−1}), and what is seen and computed later follows from that. A position that stops keeps
its state, which is the one that is read; what it leaves to others is the cache rule's to say (`cache_rules`). Positions
that the policy is not asked about, such as those of a prompt that is to run in full, take every step as it is.

Counted for every position: `loops`, where it stopped; `calls` of the block that it needed, under the rule; `checks`,
the times its logits were read to decide.

Shapes: B rows, S positions, D hidden width, V vocabulary, R positions that the policy is asked about.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopscope.control.cache_rules import CacheRule, LoopCache
from loopscope.control.policy import Policy, Stepper
from loopscope.control.signals import LiveSignals, States
from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.exit_gate import exit_gate_of
from loopscope.models.generate import CachedModel, can_cache
from loopscope.models.layers.attention import Surroundings
from loopscope.models.protocol import Context, LoopedModel
from loopscope.models.walk import Walk, read

ReadAt = Callable[[Tensor, Tensor], Tensor]
"""Logits [R, V] of a state at positions [R, 2] of (row, position)."""


@dataclass(frozen=True)
class Acted:
    """What became of a batch.

    Attributes:
        state_BSD: what is read.
        loops_BS: the loop after which each position stopped.
        calls_BS: calls of the looped block that it needed.
        checks_BS: times that its logits were read to decide.
        context: what the batch was embedded to.
    """

    state_BSD: Tensor
    loops_BS: Tensor
    calls_BS: Tensor
    checks_BS: Tensor
    context: Context


def act_on(
    model: LoopedModel,
    batch: Batch,
    policy: Policy,
    loops: int,
    rule: CacheRule = "latest",
    asked_BS: Tensor | None = None,
) -> Acted:
    """A policy on whole sequences at once, up to `loops` loops; `asked_BS` is where it is asked, else everywhere.

    Every position attends to those before it as they were in the same loop, or in their last one.
    """
    check_rule(model, rule, in_parallel=True)
    if rule == "latest":
        assert isinstance(model, CachedModel)
        cache = LoopCache(batch.input_ids.shape[1], rule)
        context = seeing_kept(embed_parallel(model, batch, cache), cache)
        course = Course(model, policy, loops, rule, cache)
    else:
        context = Walk.of(model, batch).context
        course = Course(model, policy, loops, rule)
    asked = context.batch.attention_mask if asked_BS is None else asked_BS.to(context.state.device)
    # The whole sequence is here, so the ordinary readout serves: it needs no cache of its own.
    return course.run(context, asked, lambda state, where: read(model, state, where, None, context))


def check_rule(model: LoopedModel, rule: CacheRule, *, in_parallel: bool) -> None:
    """Refuse a rule that a model, or a text that runs in parallel, cannot follow."""
    if rule not in ("latest", "shared", "held", "full"):
        raise LoopscopeError(f"there is no cache rule {rule!r}: choose from latest, shared, held, full")
    if rule in ("latest", "shared") and not can_cache(model):
        raise LoopscopeError(f'{model.name} keeps no keys and values: choose the cache rule "held" or "full"')
    if rule == "shared" and in_parallel:
        raise LoopscopeError('the cache rule "shared" is for generation: a text at once reads each loop\'s own entries')


def embed_parallel(model: CachedModel, batch: Batch, cache: LoopCache) -> Context:
    """Whole sequences, padded on the right, embedded into an empty cache, with the initial states of `embed`."""
    ids = batch.input_ids
    initial = batch.initial_state
    draw = getattr(model, "draw_initial_state", None)
    if initial is None and draw is not None:
        sources = list(batch.source_rows) if batch.source_rows is not None else [0] * ids.shape[0]
        initial = draw(sources, batch.attention_mask.sum(1).tolist(), ids.shape[1])
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    cache.used = ids.shape[1]
    return model.embed_cached(dataclasses.replace(batch, position_ids=positions, initial_state=initial), cache)


def seeing_kept(context: Context, cache: LoopCache) -> Context:
    """The context of a first pass whose queries read the cache, which may hold other entries than were just made."""
    around = context.extra
    assert isinstance(around, Surroundings)
    if around.visible is not None:
        return context
    positions = around.cache_positions
    assert positions is not None
    keys = torch.arange(cache.used, device=positions.device)
    return dataclasses.replace(context, extra=dataclasses.replace(around, visible=keys <= positions[:, None, :, None]))


class Course:
    """How batches go through the loops of a model under one policy."""

    def __init__(
        self, model: LoopedModel, policy: Policy, loops: int, rule: CacheRule, cache: LoopCache | None = None
    ) -> None:
        if loops < 1:
            raise LoopscopeError(f"a policy needs at least one loop, not {loops}")
        if "gate" in policy.signals and exit_gate_of(model) is None:
            raise LoopscopeError(f"{model.name} has no exit gate, which the policy {policy.name!r} reads")
        self.model, self.policy, self.loops, self.rule, self.cache = model, policy, loops, rule, cache
        self._gate = exit_gate_of(model)

    def run(self, context: Context, asked_BS: Tensor, read_at: ReadAt) -> Acted:
        """An embedded batch to the loop where its last position stops; to the last loop where the rule saves none."""
        way = _Way(self, context, asked_BS, read_at)
        memory = self.policy.start(len(way.where_R2)) if len(way.where_R2) else None
        valid_BS, saves = context.batch.attention_mask, self.rule in ("latest", "shared")
        for depth in range(1, self.loops + 1):
            way.step(depth)
            way.decide(depth, memory)
            if saves and bool(way.stopped_BS[valid_BS].all()):
                break
        if self.cache is not None:
            positions = context.extra.cache_positions
            self.cache.stop(*way.last_call, positions)
        return Acted(way.read_BSD, way.loops_BS, way.calls_BS, way.checks_BS, context)


class _Way:
    """One batch on its way."""

    def __init__(self, course: Course, context: Context, asked_BS: Tensor, read_at: ReadAt) -> None:
        self.course, self.context, self.asked_BS, self.read_at = course, context, asked_BS, read_at
        self.where_R2 = asked_BS.nonzero()
        self.walk = Walk(course.model, context)
        self.state_BSD = self.read_BSD = context.state
        self.before_BSD: Tensor | None = None
        self.stopped_BS = torch.zeros_like(asked_BS)
        self.loops_BS = torch.zeros(asked_BS.shape, dtype=torch.int64, device=asked_BS.device)
        self.calls_BS, self.checks_BS = self.loops_BS.clone(), self.loops_BS.clone()
        self.last_call = (0, 0)
        self.proposed_BSD = context.state
        self._logits: dict[int, Tensor] = {}

    def step(self, depth: int) -> None:
        """H_t proposed for every position, by the policy's own step where it takes one."""
        policy, before = self.course.policy, self.state_BSD
        # Neither asked nor stopped for good: one full step, whatever the policy does within its loop.
        plain_BS = ~self.asked_BS | (self.stopped_BS if self.course.rule == "full" else False)
        still_BS = self.stopped_BS if self.course.rule != "full" else torch.zeros_like(self.stopped_BS)
        walk, full, calls = self.walk, before, 0

        def block(state_BSD: Tensor) -> Tensor:
            nonlocal walk, full, calls
            kept_BS = (plain_BS | still_BS)[..., None]
            walk = walk.changed(torch.where(kept_BS, before, state_BSD))
            walk.depth = depth - 1
            if self.course.cache is not None:
                kept = plain_BS if calls else torch.zeros_like(plain_BS)
                if self.course.rule != "held":
                    kept = kept | still_BS
                self.course.cache.enter(depth, calls, kept if bool(kept.any()) else None)
            made = walk.advance()
            if self.course.cache is not None:
                self.course.cache.leave()
            if calls == 0:
                full = made
            running_BS = ~still_BS if self.course.rule in ("latest", "shared") else torch.ones_like(still_BS)
            self.calls_BS += running_BS & (~plain_BS if calls else torch.ones_like(plain_BS))
            self.last_call, calls = (depth, calls), calls + 1
            return made

        stepped = policy.step(block, before) if isinstance(policy, Stepper) else block(before)
        proposed = torch.where(plain_BS[..., None], full, stepped)
        self.proposed_BSD = torch.where(still_BS[..., None], before, proposed)
        self.walk = walk
        self.loops_BS += ~self.stopped_BS

    def decide(self, depth: int, memory: Any) -> None:
        """The policy's answer, carried out."""
        before, made = self.state_BSD, self.proposed_BSD
        if not len(self.where_R2):
            self.state_BSD = self.read_BSD = made
            return
        row_R, place_R = self.where_R2.unbind(1)

        def cut(state: Tensor | None) -> Tensor | None:
            return None if state is None else state[row_R, place_R].float()

        gate = self.course._gate
        chance = None if gate is None else torch.sigmoid(gate.logits(made, None)[row_R, place_R]).float()
        states = States(made[row_R, place_R].float(), cut(before), cut(self.before_BSD))
        signals = LiveSignals(depth, states, lambda wanted: self._read(depth, wanted), chance)
        decision = self.course.policy.decide(signals.seen(), memory)
        going_BS = self.asked_BS & ~self.stopped_BS

        def spread(value: Any, dtype: torch.dtype, fill: float) -> Tensor:
            spread_BS = torch.full(going_BS.shape, fill, dtype=dtype, device=made.device)
            spread_BS[row_R, place_R] = torch.as_tensor(value, dtype=dtype, device=made.device)
            return spread_BS

        scale_BS = torch.where(going_BS, spread(decision.scale, made.dtype, 1.0), torch.ones_like(made[..., 0]))
        scaled_BS = scale_BS != 1
        if bool(scaled_BS.any()):
            between = before + scale_BS[..., None] * (made - before)
            made = torch.where(scaled_BS[..., None], between, made)
            self._logits.pop(depth, None)  # they were those of the full step
        self.before_BSD, self.state_BSD = before, made
        self.read_BSD = torch.where(self.stopped_BS[..., None], self.read_BSD, made)
        if depth >= self.course.policy.earliest:
            self.stopped_BS = self.stopped_BS | (going_BS & spread(decision.stop, torch.bool, False))

    def _read(self, depth: int, wanted: int) -> Tensor:
        """The logits after a loop, [R, V]; every position that is still on its way is charged a check."""
        if wanted not in self._logits:
            state = self.proposed_BSD if wanted == depth else self.state_BSD
            self._logits = {known: z for known, z in self._logits.items() if known >= depth - 1}
            self._logits[wanted] = self.read_at(state, self.where_R2).float()
            self.checks_BS += self.asked_BS & ~self.stopped_BS
        return self._logits[wanted]
