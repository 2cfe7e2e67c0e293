r"""The sweep over a chain of states: updates that follow one another, with every state's logits computed once.

A program takes BLOCK_T tokens and a split of the vocabulary, tile after tile, and of a tile one state after the other.
A state's logits go to scratch memory of the program, where they stay until the update that ends in the state and the
one that starts in it are reduced; those of two states exist at a time. The updates' sums are those of `sweep`; between
tiles they are in scratch memory, too, where the four threads of a token put together what they have. The accumulators
are free while a tile is reduced, which leaves the registers to the sums. Programs that run at the same time take the
same few tokens: their states stay in the second-level cache.

**Places in scratch memory.** A thread finds what it wrote itself. An accumulator gives it rows r and r + 8 of 16, and
of columns 8n + 2q + b those with its own q. Rows are therefore kept in the order (half of 16, sixteen, row of 8),
columns as (b, half of n, n, q, four of n): a thread's four neighbours lie beside one another.

Shapes: T tokens, V vocabulary entries, D hidden width, K scales, S states.
"""

# Triton's tuples know concatenation, not unpacking, and grow while a loop is unrolled.
# ruff: noqa: RUF005, SIM109
# mypy: disable-error-code="assignment"

from __future__ import annotations

from typing import NamedTuple

from loopscope.kernels.language import Value, constexpr, jit, tl
from loopscope.readout.affine.fused.sums import (
    CENTRE0,
    CENTRE1,
    HIGHEST,
    LOWEST,
    TOP0,
    TOP1,
    added,
    brought,
    means,
    nothing,
)
from loopscope.readout.affine.fused.sweep import FAR, LOG2_E, has_reference, stored


class Scratch(NamedTuple):
    """Numbers that a program keeps in memory."""

    logits: int  # of two states
    sums: int  # of an update

    @classmethod
    def of(cls, token_block: int, vocabulary_block: int, slots: int) -> Scratch:
        """Of these tiles, with so many sums a token."""
        return cls(2 * token_block * vocabulary_block, -(-slots // 16) * 16 * token_block)


def parts_of(vocabulary_block: int) -> int:
    """In how many parts a tile is reduced, few weights at a time."""
    return max(4, vocabulary_block // 32)


@jit
def chain_kernel(
    states: Value,
    weight: Value,
    bias: Value,
    targets: Value,
    target_logits: Value,
    growth: Value,
    logits: Value,
    kept: Value,
    sums: Value,
    tokens: Value,
    vocabulary: Value,
    width: Value,
    halfway: Value,
    splits: Value,
    tiles_per_split: Value,
    length: Value,
    rounds: Value,
    COUNT: constexpr,
    MASSES: constexpr,
    MASS: constexpr,
    PLACES: constexpr,
    STRIDE: constexpr,
    FIRST_MASS: constexpr,
    LAST_MASS: constexpr,
    SLOTS: constexpr,
    ORDER: constexpr,
    HAS_BIAS: constexpr,
    RAGGED: constexpr,
    KEPT_LOGITS: constexpr,
    KEPT_SUMS: constexpr,
    BLOCK_T: constexpr,
    BLOCK_V: constexpr,
    BLOCK_D: constexpr,
) -> None:
    """Some tokens against a split of the vocabulary at `length` states, and again what other programs leave.

    Sums are in `sums` [splits, slots, updates, tokens], reference logits in `target_logits` [3, updates, tokens].
    """
    every = length - 1
    program = tl.program_id(0)
    logits += program.to(tl.int64) * KEPT_LOGITS
    kept += program.to(tl.int64) * every * KEPT_SUMS
    grow = tl.load(growth)
    grow_halfway = tl.load(growth + 1)
    log2e = grow * LOG2_E
    place = tl.arange(0, BLOCK_T)
    in_order = place // (BLOCK_T // 2) * 8 + place % (BLOCK_T // 2) // 8 * 16 + place % 8
    for item in range(program, (tokens + BLOCK_T - 1) // BLOCK_T * splits, tl.num_programs(0)):
        start_row = item // splits * BLOCK_T
        split = item % splits
        target = tl.load(targets + start_row + place, mask=start_row + place < tokens, other=0).to(tl.int32)
        rows = start_row + in_order
        for update in range(every):
            y0 = _reference(target_logits, update, tokens, rows, grow)
            y1 = _reference(target_logits, every + update, tokens, rows, grow)
            _keep(kept + update * KEPT_SUMS, nothing(y0, y1, SLOTS), SLOTS)
        first = split * tiles_per_split
        last = tl.minimum(first + tiles_per_split, (vocabulary + BLOCK_V - 1) // BLOCK_V)
        for tile in range(first, last):
            columns = tile * BLOCK_V + tl.arange(0, BLOCK_V)
            high = tl.zeros([BLOCK_T], dtype=tl.float32)
            for state in range(length):
                z = tl.zeros([BLOCK_T, BLOCK_V], dtype=tl.float32)
                for half in range(2):
                    z *= grow_halfway
                    for start in range(half * halfway, halfway + half * (width - halfway), BLOCK_D):
                        head = weight.load([tile * BLOCK_V, start]).T
                        z = tl.dot(states.load([state * tokens + start_row, start]), head, z)
                if HAS_BIAS:
                    z += (tl.load(bias + columns, mask=columns < vocabulary, other=0.0).to(tl.float32) / grow)[None, :]
                # The reference's own entry is the one that everything is measured from, to the bit.
                if has_reference(target, tile, BLOCK_V):
                    update = tl.minimum(state, every - 1)
                    y = _reference(target_logits, (state - update) * every + update, tokens, start_row + place, grow)
                    z = tl.where(columns[None, :] == target[:, None], y[:, None], z)
                if RAGGED:
                    z = tl.where((columns < vocabulary)[None, :], z, -1.0e30)
                before = logits + (state + 1) % 2 * (BLOCK_T * BLOCK_V)
                after = logits + state % 2 * (BLOCK_T * BLOCK_V)
                from_high = high
                high = _write(after, z)
                tl.debug_barrier()
                if state > 0:
                    at = kept + (state - 1) * KEPT_SUMS
                    found = _kept(at, BLOCK_T, SLOTS)
                    top0 = tl.maximum(found[TOP0], from_high)
                    top1 = tl.maximum(found[TOP1], high)
                    c0, c1 = means(found, MASS, FIRST_MASS, LAST_MASS, SLOTS, ORDER)
                    far = tl.maximum(top0 - found[TOP0], top1 - found[TOP1]) * log2e > FAR
                    c0 = tl.where(far, top1 - top0, c0)
                    c1 = tl.where(far, top1 - top0, c1)
                    found = brought(
                        found, top0, top1, found[HIGHEST], found[LOWEST], c0, c1, c0, log2e,
                        COUNT, MASSES, MASS, PLACES, STRIDE, SLOTS, ORDER, False, True,
                    )  # fmt: skip
                    # The next part is on its way while one is added.
                    part0 = _read(before, 0, BLOCK_T, BLOCK_V)
                    part1 = _read(after, 0, BLOCK_T, BLOCK_V)
                    for part in range(rounds):
                        more = tl.minimum(part + 1, rounds - 1)
                        next0 = _read(before, more, BLOCK_T, BLOCK_V)
                        next1 = _read(after, more, BLOCK_T, BLOCK_V)
                        found = added(
                            found, part0, part1, c0, log2e,
                            COUNT, MASSES, MASS, PLACES, STRIDE, SLOTS, ORDER, False, True,
                        )  # fmt: skip
                        part0 = next0
                        part1 = next1
                    _keep(at, found, SLOTS)
                tl.debug_barrier()
        for update in range(every):
            y0 = _reference(target_logits, update, tokens, rows, grow)
            y1 = _reference(target_logits, every + update, tokens, rows, grow)
            found = _kept(kept + update * KEPT_SUMS, BLOCK_T, SLOTS)
            at = sums + split.to(tl.int64) * SLOTS * (every * tokens) + update * tokens + rows
            stored(at, found, y0, y1, every * tokens, rows < tokens, SLOTS)


@jit
def _reference(target_logits: Value, end: Value, tokens: Value, rows: Value, grow: Value) -> Value:
    """The reference's logits at an end of an update, in the units of the products."""
    return tl.load(target_logits + end * tokens + rows, mask=rows < tokens, other=0.0) / grow


@jit
def _write(at: Value, z: Value) -> Value:
    """A tile's logits to scratch memory; each token's largest."""
    T: constexpr = z.shape[0]
    N: constexpr = z.shape[1] // 16
    FOUR: constexpr = min(N, 4)
    z = tl.reshape(z, [T // 16, 2, 8, 2, N // FOUR, FOUR, 4, 2])
    z = tl.reshape(tl.permute(z, [1, 0, 2, 7, 3, 4, 6, 5]), [T, 4 * N // FOUR, 4 * FOUR])
    t = tl.arange(0, T)[:, None, None]
    i = tl.arange(0, 4 * N // FOUR)[None, :, None]
    tl.store(at + i * (T * 4 * FOUR) + t * (4 * FOUR) + tl.arange(0, 4 * FOUR)[None, None, :], z)
    return tl.max(tl.max(z, 1), 1)


@jit
def _read(at: Value, part: Value, T: constexpr, V: constexpr) -> Value:
    """A part of a tile's logits from scratch memory, [T, N, 4]."""
    FOUR: constexpr = min(V // 16, 4)
    if V < 128:
        return tl.permute(tl.load(at + part * (T * 4 * FOUR) + _places(T, FOUR)), [1, 2, 0])
    else:
        at = at + part * (T * 8 * FOUR) + _places(T, FOUR)
        both = tl.join(tl.load(at), tl.load(at + T * 4 * FOUR))
        return tl.reshape(tl.permute(both, [1, 3, 2, 0]), [T, 2 * FOUR, 4])


@jit
def _places(T: constexpr, FOUR: constexpr) -> Value:
    """Where a few numbers of every thread are that lie beside one another, [4, T, FOUR]."""
    q = tl.arange(0, 4)[:, None, None]
    t = tl.arange(0, T)[None, :, None]
    return t * (4 * FOUR) + q * FOUR + tl.arange(0, FOUR)[None, None, :]


@jit
def _keep(at: Value, found: Value, SLOTS: constexpr) -> None:
    """An update's sums to scratch memory; of every four a thread has one, of the whole token."""
    T: constexpr = found[TOP0].shape[0]
    q = tl.arange(0, 4)[None, :]
    packed = ()
    for slot in tl.static_range(0, (SLOTS + 15) // 16 * 16, 4):
        x = tl.zeros([T, 4], dtype=tl.float32)
        for own in tl.static_range(4):
            if slot + own < SLOTS:
                x = tl.where(q == own, _total(found[slot + own])[:, None], x)
        packed = packed + (x,)
    for four in tl.static_range(0, (SLOTS + 15) // 16):
        even = tl.join(packed[4 * four], packed[4 * four + 2])
        odd = tl.join(packed[4 * four + 1], packed[4 * four + 3])
        x = tl.permute(tl.reshape(tl.join(even, odd), [T, 4, 4]), [1, 0, 2])
        tl.store(at + four * 16 * T + _places(T, 4), x)


@jit
def _total(x: Value) -> Value:
    """A token's sum over its four threads."""
    if len(x.shape) == 2:
        return tl.sum(x, 1)
    else:
        return x


@jit
def _kept(at: Value, T: constexpr, SLOTS: constexpr) -> Value:
    """An update's sums from scratch memory, each with the thread that has it."""
    packed = ()
    for four in tl.static_range(0, (SLOTS + 15) // 16):
        x = tl.permute(tl.load(at + four * 16 * T + _places(T, 4)), [1, 0, 2])
        even, odd = tl.split(tl.reshape(x, [T, 4, 2, 2]))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        packed = packed + (first, second, third, fourth)
    q = tl.arange(0, 4)[None, :]
    found = ()
    for slot in tl.static_range(SLOTS):
        x = tl.where(q == slot % 4, packed[slot // 4], 0.0)
        if slot == TOP0 or slot == TOP1 or slot == HIGHEST or slot == LOWEST or slot == CENTRE0 or slot == CENTRE1:
            found = found + (tl.sum(x, 1),)
        else:
            found = found + (x,)
    return found
