"""A, Q and φ''' through a readout that is not affine, Huginn's coda and head, by Taylor mode.

Held against one forward pass of the same readout, and against the ways that differentiate: the Hessian–vector product,
which gives A and Q alone, and nested forward mode. Those take an FP32 copy of the weights that was made beforehand.

Shapes: B rows, S positions, D hidden width, T reference tokens (all positions), V vocabulary entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.bench.measured import Measured
from loopscope.bench.memory import extra_on_gpu
from loopscope.bench.row import Reference, Row, at_least, at_most
from loopscope.bench.setting import Setting
from loopscope.bench.sizes import HuginnSizes
from loopscope.readout import NonlinearPath, autograd_coefficients, nonlinear_path_from_states
from loopscope.readout.autograd import AutogradCoefficients
from loopscope.readout.sources import full_precision_products

FORWARD = "one forward pass of the readout"
PLAIN_FORWARD = "the same pass in plain FP32"
HVP = "Hessian–vector product, A and Q only"
NESTED = "nested forward mode"
STEP = 0.3


class HuginnUpdate:
    """A readout of Huginn's make with random weights, two BF16 states, and a label at every position."""

    def __init__(self, size: HuginnSizes, device: torch.device) -> None:
        from loopscope.models.huginn import Huginn, HuginnConfig
        from loopscope.models.random_weights import fill_randomly

        config = HuginnConfig.from_json(
            {
                "vocab_size": size.vocabulary,
                "n_embd": size.hidden,
                "n_heads": size.heads,
                "intermediate_size": size.inner,
                "n_layers_in_prelude": 1,
                "n_layers_in_recurrent_block": 1,
                "n_layers_in_coda": 2,
            }
        )
        with torch.device("meta"):
            self.model, self.in_fp32 = Huginn(config), Huginn(config)
        fill_randomly(self.model, device, torch.bfloat16, seed=0)
        fill_randomly(self.in_fp32, device, torch.float32, seed=0)
        self.in_fp32.load_state_dict(self.model.state_dict())
        for model in (self.model, self.in_fp32):
            model.prepare()
        generator = torch.Generator(device).manual_seed(3)
        shape = (size.rows, size.positions, size.hidden)
        state = torch.randn(shape, device=device, generator=generator)
        noise = torch.randn(shape, device=device, generator=generator)
        self.h_BSD, self.h_plus_BSD = state.bfloat16(), (state + STEP * noise).bfloat16()
        self.positions_T2 = torch.cartesian_prod(
            torch.arange(size.rows, device=device), torch.arange(size.positions, device=device)
        )
        tokens = size.rows * size.positions
        self.targets_T = torch.randint(size.vocabulary, (tokens,), device=device, generator=generator)

    @property
    def examples(self) -> Tensor:
        """Every row is an example."""
        return self.positions_T2[:, 0]

    def path(self, impl: str = "taylor") -> NonlinearPath:
        """Its path, as a pass makes it; the other implementations through the FP32 copy."""
        model = self.model if impl == "taylor" else self.in_fp32
        readout = model.body_and_head(torch.float32)
        return nonlinear_path_from_states(
            readout, self.h_BSD, self.h_plus_BSD, self.targets_T, self.positions_T2, examples=self.examples, impl=impl
        )

    def taylor(self) -> Tensor:
        """A, 2Q and φ''' of every row, [4, B] with the gain 0 before them."""
        return self.path().derivatives(0.0, 3).stack

    def nested(self) -> Tensor:
        """The same by nested forward mode."""
        return self.path("nested").derivatives(0.0, 3).stack

    def forward(self) -> Tensor:
        """Logits of every position, FP32."""
        return self._logits(self.model)

    def plain_forward(self) -> Tensor:
        """The same from FP32 weights."""
        return self._logits(self.in_fp32)

    def _logits(self, model: torch.nn.Module) -> Tensor:
        with full_precision_products():
            logits: Tensor = model.readout(self.h_BSD.float(), self.positions_T2, torch.float32)  # type: ignore[operator]
        return logits

    def hessian_vector(self) -> AutogradCoefficients:
        """A and 2Q of every row the paper's way, in FP32."""
        state = self.h_BSD.float()
        rows = state.shape[0]
        count = self.targets_T.shape[0] // rows

        def utility(at: Tensor) -> Tensor:
            logits_TV = self.in_fp32.readout(at, self.positions_T2, torch.float32)
            chosen = torch.log_softmax(logits_TV, -1).gather(1, self.targets_T.unsqueeze(1))[:, 0]
            return chosen.reshape(rows, count).mean(1)

        owner = torch.arange(rows, device=state.device)
        with full_precision_products():
            return autograd_coefficients(utility, state, self.h_plus_BSD.float() - state, owner, rows)


def rows(setting: Setting) -> list[Row]:
    """Time, and on a GPU memory."""
    sizes, clock = setting.sizes, setting.clock
    update = HuginnUpdate(sizes.huginn, setting.device)
    quick = {"ours": update.taylor, FORWARD: update.forward, PLAIN_FORWARD: update.plain_forward}
    raced = clock.race(quick, sizes.repeats if setting.on_gpu else sizes.slow_repeats, warm_ups=2)
    slow = clock.race({HVP: update.hessian_vector}, sizes.slow_repeats)
    slow |= clock.race({NESTED: update.nested}, sizes.slow_repeats)
    ours = raced["ours"]
    references = (
        Reference(FORWARD, raced[FORWARD], floor=True),
        Reference(PLAIN_FORWARD, raced[PLAIN_FORWARD], floor=True),
        Reference(HVP, slow[HVP]),
        Reference(NESTED, slow[NESTED]),
    )
    by_name = {reference.name: reference.ratio(ours) for reference in references}
    judged = sizes.judged and setting.on_gpu
    text = "at most 4.5 times one forward pass of the same readout"
    goals = (
        at_most(text, 4.5, by_name[FORWARD], judged=judged, against=FORWARD),
        at_least("less time than the Hessian–vector product", 1.0, by_name[HVP], judged=judged, against=HVP),
    )
    size = sizes.huginn.as_size()
    what = "A, Q and φ''' through Huginn's coda and head in FP32, all positions read"
    found = [Row("huginn", what, size, "s", ours, references, goals, _differences(update))]
    return [*found, _memory(setting, update, size)] if setting.on_gpu else found


def _memory(setting: Setting, update: HuginnUpdate, size: dict[str, int]) -> Row:
    ours, forward, product = (
        Measured.of([extra_on_gpu(call, setting.device)])
        for call in (update.taylor, update.plain_forward, update.hessian_vector)
    )
    reference = Reference(HVP, product)
    goal = at_least(
        "less memory than the Hessian–vector product",
        1.0,
        reference.ratio(ours),
        judged=setting.sizes.judged,
        against=HVP,
    )
    what = "Memory beyond weights and states for A, Q and φ''' through Huginn's coda and head"
    return Row(
        "huginn:memory",
        what,
        size,
        "MiB",
        ours,
        (Reference(PLAIN_FORWARD, forward, floor=True), reference),
        (goal,),
    )


def _differences(update: HuginnUpdate) -> dict[str, float]:
    """The largest differences to the ways that differentiate, over the largest value."""
    ours, nested, product = update.taylor(), update.nested(), update.hessian_vector()

    def relative(one: Tensor, other: Tensor) -> float:
        return float((one - other).abs().max() / other.abs().max())

    return {
        "largest_difference_A": relative(ours[1], product.slope),
        "largest_difference_curvature": relative(ours[2], product.curvature),
        "largest_difference_third": relative(ours[3], nested[3]),
    }
