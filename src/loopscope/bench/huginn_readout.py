"""A, Q and φ''' through a readout that is not affine, Huginn's coda and head, by Taylor mode.

Held against one forward pass of the same readout, with FP32 products and as loopscope runs it, and against the ways
that differentiate: the Hessian–vector product, which gives A and Q alone, and nested forward mode. Weights are random.
The plain ways run under `implementation("reference")`: FP32 products with FP32 copies of the weights, which the model
keeps from the first call on.

Shapes: B rows, S positions, D hidden width, T reference tokens, V vocabulary entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.bench.clock import MIB, Call, Error, Measured, error_of, extra_on_gpu
from loopscope.bench.row import Reference, Row, Setting, at_least, at_most
from loopscope.bench.sizes import HuginnSizes
from loopscope.kernels.choice import implementation
from loopscope.readout import NonlinearPath, autograd_coefficients, nonlinear_path_from_states
from loopscope.readout.affine.sources import full_precision_products
from loopscope.readout.hessian_vector import AutogradCoefficients

STEP = 0.3
SPREAD = 4.0
"""Standard deviation of the logits: a fresh head's are nearly flat."""
SHARE = 0.7
"""Of the Hessian–vector product's time, aimed at on a CPU."""
CONTEXT = 42
"""The first 1/42 of the positions of a row are context, the others reference tokens."""


class HuginnUpdate:
    """Coda and head in BF16, two BF16 states, and a label at nearly every position."""

    def __init__(self, size: HuginnSizes, device: torch.device) -> None:
        from loopscope.models.checkpoint.random_weights import fill_randomly
        from loopscope.models.families.huginn import Huginn, HuginnConfig

        config = {
            "vocab_size": size.vocabulary,
            "n_embd": size.hidden,
            "n_heads": size.heads,
            "intermediate_size": size.inner,
            "n_layers_in_prelude": 0,
            "n_layers_in_recurrent_block": 1,
            "n_layers_in_coda": 2,
        }
        with torch.device("meta"):
            self.model = Huginn(HuginnConfig.from_json(config))
        fill_randomly(self.model, device, torch.bfloat16, seed=0)
        generator = torch.Generator(device).manual_seed(3)
        with torch.no_grad():
            self.model.lm_head.weight.normal_(0.0, SPREAD / size.hidden**0.5, generator=generator)
        self.model.prepare()
        shape = (size.rows, size.positions, size.hidden)
        state = torch.randn(shape, device=device, generator=generator)
        noise = torch.randn(shape, device=device, generator=generator)
        self.h_BSD, self.h_plus_BSD = state.bfloat16(), (state + STEP * noise).bfloat16()
        read = torch.arange(max(1, size.positions // CONTEXT), size.positions, device=device)
        self.positions_T2 = torch.cartesian_prod(torch.arange(size.rows, device=device), read)
        self.tokens = int(self.positions_T2.shape[0])
        self.targets_T = torch.randint(size.vocabulary, (self.tokens,), device=device, generator=generator)

    def path(self, impl: str = "taylor", dtype: torch.dtype = torch.float32) -> NonlinearPath:
        """Its path as a pass makes it, every row an example."""
        return nonlinear_path_from_states(
            self.model.body_and_head(dtype),
            self.h_BSD,
            self.h_plus_BSD,
            self.targets_T,
            self.positions_T2,
            examples=self.positions_T2[:, 0],
            dtype=dtype,
            impl=impl,
        )

    def taylor(self) -> Tensor:
        """A, 2Q and φ''' of every row, [4, B] with the gain 0 before them."""
        return self.path().derivatives(0.0, 3).stack

    def plain_taylor(self) -> Tensor:
        """The same with FP32 products."""
        with implementation("reference"):
            return self.taylor()

    def nested(self) -> Tensor:
        """The same by nested forward mode."""
        with implementation("reference"):
            return self.path("nested").derivatives(0.0, 3).stack

    def of_tokens(self, *, plain: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
        """A, 2Q and φ''' of every token, [3, T]."""
        with implementation("reference" if plain else "auto"):
            return self.path(dtype=dtype).per_token().derivatives(0.0, 3).stack[1:]

    def forward(self) -> Tensor:
        """Logits of every reference token, as a pass reads them."""
        with full_precision_products():
            return self.model.readout(self.h_BSD.float(), self.positions_T2, torch.float32)

    def plain_forward(self) -> Tensor:
        """The same with FP32 products."""
        with implementation("reference"):
            return self.forward()

    def hessian_vector(self) -> AutogradCoefficients:
        """A and 2Q of every row the paper's way, in FP32."""
        state = self.h_BSD.float()
        rows = state.shape[0]

        def utility(at: Tensor) -> Tensor:
            logits_TV = self.model.readout(at, self.positions_T2, torch.float32)
            chosen = torch.log_softmax(logits_TV, -1).gather(1, self.targets_T.unsqueeze(1))[:, 0]
            return chosen.reshape(rows, -1).mean(1)

        owner = torch.arange(rows, device=state.device)
        with full_precision_products(), implementation("reference"):
            return autograd_coefficients(utility, state, self.h_plus_BSD.float() - state, owner, rows)


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
    if not setting.on_gpu:
        text, share = f"at most {SHARE:g} of the Hessian–vector product's time", ours.value / raced[HVP].value
        goals += (at_most(text, SHARE, share, judged=sizes.judged),)
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
