"""The sweep on Hopper GPUs: loading, multiplying and reducing are done by different warps, all at the same time.

A program takes BLOCK_T tokens and a split of the vocabulary, tile after tile, and in every tile one state after the
other. One warp asks the copy engine for blocks of states and head; eight warps multiply them on the tensor cores and
leave the tile's logits in shared memory; four more reduce them there, a token for each thread, while the next state is
multiplied. Logits of a state stay until the update that ends in it and the one that starts in it are reduced, so that a
chain of states takes one product for each of them.

The sums are those of `sweep`, by the same code; those of an update wait in global memory while the others have their
turn.

Kernels of this kind are written in Gluon, the level below Triton's language, which has no interpreter: on a CPU
`sweep` stands for both.

Shapes: T tokens, V vocabulary entries, D hidden width.
"""

# Triton's tuples know concatenation, not unpacking, and grow while a loop is unrolled. Gluon has no types.
# ruff: noqa: RUF005
# mypy: ignore-errors

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from loopscope.kernels.language import tl
from loopscope.readout.affine.fused.sweep import LOG2_E, TOP0, TOP1, added, risen

REDUCING_WARPS = gl.constexpr(4)
_copy = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # as later versions call it


_SIZES = ("tokens", "padded", "vocabulary", "width", "tiles_per_split")


@gluon.jit(do_not_specialize=_SIZES)  # batches differ in them; one compilation serves all
def chain_kernel(
    states, weight, bias, targets, target_logits, growth, own, sums, tokens, padded, vocabulary, width, tiles_per_split,
    STATES: gl.constexpr, COUNT: gl.constexpr, PLACES: gl.constexpr, SLOTS: gl.constexpr, ORDER: gl.constexpr,
    KEPT: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_OWN: gl.constexpr, ENDS: gl.constexpr, EXTREMES: gl.constexpr,
    BLOCK_T: gl.constexpr, BLOCK_V: gl.constexpr, BLOCK_D: gl.constexpr, CHUNK: gl.constexpr, STAGES: gl.constexpr,
    PENDING: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Some tokens against a split of the vocabulary, at all states."""
    row = gl.program_id(0) * BLOCK_T
    first = gl.program_id(1) * tiles_per_split
    last = gl.minimum(first + tiles_per_split, (vocabulary + BLOCK_V - 1) // BLOCK_V)
    a = gl.allocate_shared_memory(states.dtype, [STAGES, BLOCK_T, BLOCK_D], states.layout)
    b = gl.allocate_shared_memory(weight.dtype, [STAGES, BLOCK_V, BLOCK_D], weight.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    # Eight rows of 16 bytes that are read together lie in different banks.
    phase: gl.constexpr = 32 // CHUNK if CHUNK < 32 else 1
    swizzled: gl.constexpr = gl.SwizzledSharedLayout(4, phase, 8 // phase, [1, 0])
    z = gl.allocate_shared_memory(gl.float32, [2 * BLOCK_V // CHUNK, BLOCK_T, CHUNK], swizzled)
    z_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    z_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(z_full.index(i), count=1)
        mbarrier.init(z_empty.index(i), count=1)
    fence_async_shared()
    tile_shape: gl.constexpr = (STATES, BLOCK_T, BLOCK_V, BLOCK_D, CHUNK, STAGES, PENDING)
    asked: gl.constexpr = (COUNT, PLACES, SLOTS, ORDER, KEPT, HAS_BIAS, HAS_OWN, ENDS, EXTREMES)
    numbers = (bias, targets, target_logits, growth, own, sums, tokens, vocabulary)
    gl.warp_specialize(
        [
            (_multiply, (a, b, z, full, empty, z_full, z_empty, width, first, last, tile_shape)),
            (_reduce, (z, z_full, z_empty, numbers, row, first, last, tile_shape, asked)),
            (_load, (states, weight, a, b, full, empty, row, padded, width, first, last, tile_shape)),
        ],
        [REDUCING_WARPS, 1],
        [REGISTERS, 24],
    )


@gluon.jit
def _load(states, weight, a, b, full, empty, row, padded, width, first, last, tile_shape: gl.constexpr):
    STATES: gl.constexpr = tile_shape[0]
    BLOCK_V: gl.constexpr = tile_shape[2]
    BLOCK_D: gl.constexpr = tile_shape[3]
    STAGES: gl.constexpr = tile_shape[5]
    step = 0
    for tile in range(first, last):
        for state in range(STATES):
            for start in range(0, width, BLOCK_D):
                at = step % STAGES
                mbarrier.wait(empty.index(at), ((step // STAGES) & 1) ^ 1)
                mbarrier.expect(full.index(at), states.block_type.nbytes + weight.block_type.nbytes)
                _copy(states, [state * padded + row, start], full.index(at), a.index(at))
                _copy(weight, [tile * BLOCK_V, start], full.index(at), b.index(at))
                step += 1


@gluon.jit
def _multiply(a, b, z, full, empty, z_full, z_empty, width, first, last, tile_shape: gl.constexpr):
    STATES: gl.constexpr = tile_shape[0]
    BLOCK_T: gl.constexpr = tile_shape[1]
    BLOCK_V: gl.constexpr = tile_shape[2]
    BLOCK_D: gl.constexpr = tile_shape[3]
    CHUNK: gl.constexpr = tile_shape[4]
    STAGES: gl.constexpr = tile_shape[5]
    PENDING: gl.constexpr = tile_shape[6]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_V, 16])
    step = 0
    turn = 0
    for _ in range(first, last):
        for _ in range(STATES):
            acc = gl.zeros([BLOCK_T, BLOCK_V], gl.float32, layout)
            for start in range(0, width, BLOCK_D):
                at = step % STAGES
                mbarrier.wait(full.index(at), (step // STAGES) & 1)
                acc = warpgroup_mma(a.index(at), b.index(at).permute((1, 0)), acc, is_async=True)
                acc = warpgroup_mma_wait(num_outstanding=PENDING, deps=(acc,))
                # What was read a step ago, or just now.
                read = (step + STAGES - PENDING) % STAGES
                mbarrier.arrive(empty.index(read), count=1, pred=start >= PENDING * BLOCK_D)
                step += 1
            acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
            if PENDING == 1:
                mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
            mbarrier.wait(z_empty.index(turn % 2), ((turn // 2) & 1) ^ 1)
            _keep(z, turn % 2 * (BLOCK_V // CHUNK), acc, CHUNK)
            tl.debug_barrier()
            mbarrier.arrive(z_full.index(turn % 2), count=1)
            turn += 1


@gluon.jit
def _keep(z, first, columns, CHUNK: gl.constexpr):
    """A tile's logits into shared memory, CHUNK columns beside one another."""
    if columns.shape[1] == CHUNK:
        z.index(first).store(columns)
    else:
        half: gl.constexpr = columns.shape[1] // 2
        low, high = columns.reshape([columns.shape[0], 2, half]).permute((0, 2, 1)).split()
        _keep(z, first, low, CHUNK)
        _keep(z, first + half // CHUNK, high, CHUNK)


@gluon.jit
def _reduce(z, z_full, z_empty, numbers, row, first, last, tile_shape: gl.constexpr, asked: gl.constexpr):
    STATES: gl.constexpr = tile_shape[0]
    BLOCK_T: gl.constexpr = tile_shape[1]
    BLOCK_V: gl.constexpr = tile_shape[2]
    CHUNK: gl.constexpr = tile_shape[4]
    COUNT: gl.constexpr = asked[0]
    PLACES: gl.constexpr = asked[1]
    SLOTS: gl.constexpr = asked[2]
    ORDER: gl.constexpr = asked[3]
    KEPT: gl.constexpr = asked[4]
    HAS_BIAS: gl.constexpr = asked[5]
    HAS_OWN: gl.constexpr = asked[6]
    ENDS: gl.constexpr = asked[7]
    EXTREMES: gl.constexpr = asked[8]
    bias, targets, target_logits, growth, own, sums, tokens, vocabulary = numbers
    CHUNKS: gl.constexpr = BLOCK_V // CHUNK
    layout: gl.constexpr = gl.BlockedLayout([1, CHUNK], [32, 1], [REDUCING_WARPS, 1], [1, 0])
    rows = row + gl.arange(0, BLOCK_T, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, layout))
    live = rows < tokens
    target = gl.load(targets + rows, mask=live, other=0)
    grow = gl.load(growth)
    log2e = grow * LOG2_E
    split = gl.program_id(1)
    turn = 0
    for tile in range(first, last):
        start = tile * BLOCK_V
        held = ((target >= start) & (target < start + BLOCK_V)).to(gl.int32)
        special = (gl.max(held, 0) > 0) | (start + BLOCK_V > vocabulary)
        mbarrier.wait(z_full.index(turn % 2), (turn // 2) & 1)
        turn += 1
        for update in range(STATES - 1):
            y0 = gl.load(target_logits + update * tokens + rows, mask=live, other=0.0) / grow
            y1 = gl.load(target_logits + (update + 1) * tokens + rows, mask=live, other=0.0) / grow
            alpha = y0
            if HAS_OWN:
                alpha = gl.load(own + rows, mask=live, other=0.0)
            at = sums + (update * gl.num_programs(1) + split).to(gl.int64) * SLOTS * tokens + rows
            known = live & (tile > first)
            found = ()
            for slot in gl.static_range(SLOTS):
                found = found + (gl.load(at + slot * tokens, mask=known, other=0.0),)
            mbarrier.wait(z_full.index(turn % 2), (turn // 2) & 1)
            before = (turn + 1) % 2 * CHUNKS
            after = turn % 2 * CHUNKS
            found = (gl.where(known, found[TOP0], y0), gl.where(known, found[TOP1], y1)) + found[2:]
            for chunk in range(CHUNKS):
                z0, z1 = _entries(
                    z.index(before + chunk).load(layout), z.index(after + chunk).load(layout), bias,
                    start + chunk * CHUNK, columns, target, y0, y1, vocabulary, grow, special, HAS_BIAS,
                )  # fmt: skip
                found = risen(
                    found,
                    gl.maximum(found[TOP0], gl.max(z0, 1)),
                    gl.maximum(found[TOP1], gl.max(z1, 1)),
                    alpha, log2e, COUNT, PLACES, SLOTS, KEPT, HAS_OWN, ENDS,
                )  # fmt: skip
                found = added(
                    found, z0, z1, y1 - y0, alpha, log2e, COUNT, PLACES, SLOTS, ORDER, KEPT, HAS_OWN, ENDS, EXTREMES
                )
            tl.debug_barrier()
            mbarrier.arrive(z_empty.index((turn + 1) % 2), count=1)
            for slot in gl.static_range(SLOTS):
                gl.store(at + slot * tokens, found[slot], mask=live)
            turn += 1
        tl.debug_barrier()
        mbarrier.arrive(z_empty.index((turn + 1) % 2), count=1)


@gluon.jit
def _entries(
    z0, z1, bias, begin, columns, target, y0, y1, vocabulary, grow, special, HAS_BIAS: gl.constexpr
):  # fmt: skip
    """Logits at both ends; the reference's own are those that everything is measured from, to the bit."""
    if HAS_BIAS:
        at = begin + columns
        shift = gl.load(bias + at, mask=at < vocabulary, other=0.0).to(gl.float32) / grow
        z0 += shift[None, :]
        z1 += shift[None, :]
    if special:
        is_target = columns[None, :] == (target - begin)[:, None]
        inside = (columns < vocabulary - begin)[None, :]
        z0 = gl.where(is_target, y0[:, None], gl.where(inside, z0, -1.0e30))
        z1 = gl.where(is_target, y1[:, None], gl.where(inside, z1, -1.0e30))
    return z0, z1
