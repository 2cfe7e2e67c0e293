"""A, Q and φ''' through a readout that is not affine, Huginn's coda and head, by Taylor mode.

Held against one forward pass of the same readout, with FP32 products and as loopscope runs it, and against the ways
that differentiate: the Hessian–vector product, which gives A and Q alone, and nested forward mode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.bench.clock import Call
from loopscope.bench.errors import Error, error_of
from loopscope.bench.huginn_update import HuginnUpdate
from loopscope.bench.measured import Measured
from loopscope.bench.memory import MIB, extra_on_gpu
from loopscope.bench.row import Reference, Row, at_least, at_most
from loopscope.bench.setting import Setting

PLAIN_FORWARD = "one forward pass with FP32 products"
FORWARD = "one forward pass as loopscope runs it"
HVP = "Hessian–vector product, A and Q only"
PLAIN_TAYLOR = "Taylor mode with FP32 products"
NESTED = "nested forward mode"


def rows(setting: Setting) -> list[Row]:
    """Time and accuracy, and on a GPU memory."""
    sizes, clock = setting.sizes, setting.clock
    update = HuginnUpdate(sizes.huginn, setting.device)
    floors = {PLAIN_FORWARD: update.plain_forward}
    others: dict[str, Call] = {HVP: update.hessian_vector}
    if setting.on_gpu:  # elsewhere every product is an FP32 product, and nested forward mode takes minutes
        floors[FORWARD] = update.forward
        others |= {PLAIN_TAYLOR: update.plain_taylor, NESTED: update.nested}
    repeats = sizes.repeats if setting.on_gpu else sizes.slow_repeats
    raced = clock.race({"ours": update.taylor, **floors}, repeats, warm_ups=2 if setting.on_gpu else 1)
    raced |= clock.race(others, sizes.slow_repeats)
    ours = raced["ours"]
    references = (
        *(Reference(name, raced[name], floor=True) for name in floors),
        *(Reference(name, raced[name]) for name in others),
    )
    ratios = {reference.name: reference.ratio(ours) for reference in references}
    errors = _errors(update)
    worst = max(error.rms_ratio for error in errors)
    judged = sizes.judged and setting.on_gpu
    goals = (
        *(at_most(f"at most 4.5 times {name}", 4.5, ratios[name], judged=judged, against=name) for name in floors),
        at_least("less time than the Hessian–vector product", 1.0, ratios[HVP], judged=judged, against=HVP),
        at_most("no RMS error above that with FP32 products", 1.0, worst, judged=sizes.judged),
    )
    size = {"tokens": update.tokens} | sizes.huginn.as_size()
    what = "A, Q and φ''' through Huginn's coda and head in FP32"
    found = [Row("huginn", what, size, "s", ours, references, goals, _differences(update), errors)]
    return [*found, _memory(setting, update, size)] if setting.on_gpu else found


def _memory(setting: Setting, update: HuginnUpdate, size: dict[str, int]) -> Row:
    ours, forward, product = (
        Measured.of([extra_on_gpu(call, setting.device)])
        for call in (update.taylor, update.forward, update.hessian_vector)
    )
    reference = Reference(HVP, product)
    text = "less memory than the Hessian–vector product"
    goal = at_least(text, 1.0, reference.ratio(ours), judged=setting.sizes.judged, against=HVP)
    what = "Memory beyond states and all copies of the weights for A, Q and φ''' through Huginn's coda and head"
    references = (Reference(FORWARD, forward, floor=True), reference)
    # Only the ways with FP32 products hold this as well.
    figures = {"mib_of_an_fp32_copy_of_the_weights": sum(p.numel() for p in update.model.parameters()) * 4 / MIB}
    return Row("huginn:memory", what, size, "MiB", ours, references, (goal,), figures)


def _errors(update: HuginnUpdate) -> tuple[Error, ...]:
    """Errors of every token's derivatives against an FP64 run, beside those of Taylor mode with FP32 products."""
    exact = update.of_tokens(plain=True, dtype=torch.float64)
    update.model.prepare()  # forgets the FP64 copy of the weights
    ours, plain = update.of_tokens(), update.of_tokens(plain=True)
    return tuple(
        error_of(name, exact[k], ours[k], plain[k]) for k, name in enumerate(("slope", "curvature", "third derivative"))
    )


def _differences(update: HuginnUpdate) -> dict[str, float]:
    """The largest differences to the Hessian–vector product, over the largest value."""
    ours, product = update.taylor(), update.hessian_vector()

    def relative(one: Tensor, other: Tensor) -> float:
        return float((one - other).abs().max() / other.abs().max())

    return {
        "largest_difference_A": relative(ours[1], product.slope),
        "largest_difference_curvature": relative(ours[2], product.curvature),
    }
