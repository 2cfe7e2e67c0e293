"""A policy acting on states: one batch through the loops, every position with the scale and the stop that it is given.

After loop t the policy sees H_t = F(H_{t−1}) beside the states before, and decides. The state goes on as
H_{t−1} + scale · (H_t − H_{t−1}), and what is seen and computed later follows from that. A position that stops keeps
its state, which is the one that is read, and has no keys and values past its last loop: deeper queries read those of
its last loop, whichever they are in. Copying them into all deeper slots is the same, and that is how it is done here.

Counted for every position: `loops`, where it stopped; `calls` of the block that it needed; `checks`, the times its
logits were read to decide, those that are read in the end not counted.

Shapes: B rows, S positions, D hidden width, V vocabulary, R positions that are no padding, K key-value heads, P head
width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from loopscope.control.policy import Policy, Stepper
from loopscope.control.signals import LiveSignals
from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.exit_gate import exit_gate_of
from loopscope.models.generate import CachedModel, can_cache
from loopscope.models.layers.attention import KeysValues, KeyValueCache, Surroundings
from loopscope.models.protocol import Context, LoopedModel
from loopscope.models.walk import Walk, read

ReadAt = Callable[[Tensor, Tensor], Tensor]
"""Logits [R, V] of a state at positions [R, 2] of (row, position)."""

_STRIDE = 1 << 20
"""Slots of one call of the block; a family numbers those outside the loop from 0 or below it."""


def act_on(model: LoopedModel, batch: Batch, policy: Policy, loops: int) -> Acted:
    """A policy on whole sequences at once, padded on the right, up to `loops` loops.

    Every position attends to those before it as they were in the same loop, or in their last one.
    """
    keeping = keeping_keys(model)
    ids, initial = batch.input_ids, batch.initial_state
    draw = getattr(model, "draw_initial_state", None)
    if initial is None and draw is not None:
        sources = list(batch.source_rows) if batch.source_rows is not None else [0] * ids.shape[0]
        initial = draw(sources, batch.attention_mask.sum(1).tolist(), ids.shape[1])
    cache = LoopCache(ids.shape[1])
    cache.used = ids.shape[1]
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    context = keeping.embed_cached(dataclasses.replace(batch, position_ids=positions, initial_state=initial), cache)
    # The whole sequence is here, so the ordinary readout serves: it needs no cache of its own.
    return Acted(model, context, policy, loops, cache, lambda state, where: read(model, state, where, None, context))


def keeping_keys(model: LoopedModel) -> CachedModel:
    """The model, which must keep keys and values for a policy to act on it."""
    if not isinstance(model, CachedModel) or not can_cache(model):
        raise LoopscopeError(f"{model.name} keeps no keys and values, which a policy that acts on a model needs")
    return model


class LoopCache(KeyValueCache):
    """Keys and values by call of the looped block: the j-th call of loop t, and which of its layers.

    A loop calls the block once, or once for every substep. What a family writes outside the loop (prelude and coda)
    keeps the family's own slots.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._calls: list[tuple[int, int]] = []
        self._call: tuple[int, int] | None = None
        self._last = (0, 0)
        self._layer = 0
        self._kept_BS: Tensor | None = None

    def enter(self, loop: int, substep: int, kept_BS: Tensor) -> None:
        """The block is about to be called; positions that are `kept` write what they wrote in the call before."""
        self._call = self._last = (loop, substep)
        self._layer, self._kept_BS = 0, kept_BS if bool(kept_BS.any()) else None

    def leave(self) -> None:
        """What follows is outside the loop."""
        self._calls = sorted({*self._calls, self._last})
        self._call = None

    def write(self, slot: int, keys_BSKP: Tensor, values_BSKP: Tensor, positions_BS: Tensor) -> KeysValues:
        """Stores new keys and values, those of kept positions excepted; returns the slot up to `used`."""
        if self._call is None:
            return super().write(slot, keys_BSKP, values_BSKP, positions_BS)
        layer, self._layer = self._layer, self._layer + 1
        own = _slot(self._call, layer)
        before = max((known for known in self._calls if known < self._call), default=None)
        source = own if before is None else _slot(before, layer)
        if own not in self._slots and before is not None:
            # Nobody has come so far: every token's last entries are those of the call before.
            self._slots[own] = KeysValues(*(entry.clone() for entry in self._slots[source]))
        if self._kept_BS is not None:
            kept, rows = self._kept_BS[..., None, None], _rows(positions_BS)
            keys_BSKP, values_BSKP = (
                torch.where(kept, held[rows, :, positions_BS], new)
                for held, new in zip(self._slots[source], (keys_BSKP, values_BSKP), strict=True)
            )
        return super().write(own, keys_BSKP, values_BSKP, positions_BS)

    def stop(self, positions_BS: Tensor) -> None:
        """Nobody goes deeper: deeper slots that there are get these positions' last entries."""
        rows = _rows(positions_BS)
        for call in self._calls[self._calls.index(self._last) + 1 :]:
            layer = 0
            while (slot := _slot(call, layer)) in self._slots:
                for old, new in zip(self._slots[_slot(self._last, layer)], self._slots[slot], strict=True):
                    new[rows, :, positions_BS] = old[rows, :, positions_BS]
                layer += 1


def _slot(call: tuple[int, int], layer: int) -> int:
    loop, substep = call
    return ((loop * _STRIDE + substep) + 1) * _STRIDE + layer


def _rows(positions_BS: Tensor) -> Tensor:
    return torch.arange(positions_BS.shape[0], device=positions_BS.device)[:, None]


class Acted:
    """An embedded batch taken to the loop where its last position stops, and what became of it.

    Attributes:
        context: what the batch was embedded to.
        state_BSD: what is read.
        loops_BS: the loop after which each position stopped.
        calls_BS: calls of the looped block that it needed.
        checks_BS: times that its logits were read to decide.
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
        assert isinstance(around, Surroundings)
        assert around.cache_positions is not None
        if around.visible is None:
            # The queries of a first pass read the cache, too, which may hold other entries than were just made.
            keys = torch.arange(cache.used, device=around.cache_positions.device)
            visible = keys <= around.cache_positions[:, None, :, None]
            context = dataclasses.replace(context, extra=dataclasses.replace(around, visible=visible))
        self.context, self._policy, self._cache, self._read_at = context, policy, cache, read_at
        self._loops = loops
        mask_BS = context.batch.attention_mask
        self._where_R2 = mask_BS.nonzero()
        self._walk, self.state_BSD = Walk(model, context), context.state
        self._before_BSD: Tensor | None = None
        self._stopped_BS = torch.zeros_like(mask_BS)
        self.loops_BS = torch.zeros(mask_BS.shape, dtype=torch.int64, device=mask_BS.device)
        self.calls_BS, self.checks_BS = self.loops_BS.clone(), self.loops_BS.clone()
        self._logits: dict[int, Tensor] = {}
        memory = policy.start(len(self._where_R2))
        for depth in range(1, loops + 1):
            self._decide(depth, self._step(depth), memory)
            if bool(self._stopped_BS[mask_BS].all()):
                break
        cache.stop(around.cache_positions)

    def _step(self, depth: int) -> Tensor:
        """H_t proposed for every position, by the policy's own step where it takes one."""
        before, kept = self.state_BSD, self._stopped_BS[..., None]
        calls = 0

        def block(state_BSD: Tensor) -> Tensor:
            nonlocal calls
            self._walk = self._walk.changed(torch.where(kept, before, state_BSD))
            self._walk.depth = depth - 1
            self._cache.enter(depth, calls, self._stopped_BS)
            made = self._walk.advance()
            self._cache.leave()
            self.calls_BS += ~self._stopped_BS
            calls += 1
            return made

        made = self._policy.step(block, before) if isinstance(self._policy, Stepper) else block(before)
        self.loops_BS += ~self._stopped_BS
        return torch.where(kept, before, made)

    def _decide(self, depth: int, made: Tensor, memory: Any) -> None:
        """The policy's answer, carried out."""
        before, going_BS = self.state_BSD, ~self._stopped_BS
        row_R, place_R = self._where_R2.unbind(1)

        def logits(wanted: int) -> Tensor:
            """After a loop, [R, V]; every position that is still on its way is charged a check."""
            if wanted not in self._logits:
                self._logits = {known: z for known, z in self._logits.items() if known >= depth - 1}
                self._logits[wanted] = self._read_at(made if wanted == depth else before, self._where_R2).float()
                self.checks_BS += going_BS
            return self._logits[wanted]

        def spread(value: Any, dtype: torch.dtype, fill: float) -> Tensor:
            spread_BS = torch.full(going_BS.shape, fill, dtype=dtype, device=made.device)
            spread_BS[row_R, place_R] = torch.as_tensor(value, dtype=dtype, device=made.device)
            return spread_BS

        gate = self._gate
        chance = None if gate is None else torch.sigmoid(gate.logits(made, None)[row_R, place_R]).float()
        there = [state for state in (made, before, self._before_BSD) if state is not None]
        states = [state[row_R, place_R].float() for state in there]
        decision = self._policy.decide(LiveSignals(depth, states, logits, chance).seen(), memory)
        scale_BS = torch.where(going_BS, spread(decision.scale, made.dtype, 1.0), torch.ones_like(made[..., 0]))
        scaled_BS, was_read = scale_BS != 1, depth in self._logits
        if bool(scaled_BS.any()):
            between = before + scale_BS[..., None] * (made - before)
            made = torch.where(scaled_BS[..., None], between, made)
            self._logits.pop(depth, None)  # they were those of the full step
        self._before_BSD, self.state_BSD = before, made
        stops_BS = going_BS if depth == self._loops else torch.zeros_like(going_BS)
        if depth >= self._policy.earliest:
            stops_BS = stops_BS | (going_BS & spread(decision.stop, torch.bool, False))
        if was_read:
            self.checks_BS -= (stops_BS & ~scaled_BS).long()  # these logits are the answer's
        self._stopped_BS = self._stopped_BS | stops_BS
