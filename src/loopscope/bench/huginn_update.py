"""An update through a readout of Huginn's make with random weights, and the ways to ask for its derivatives.

The plain ways run under `implementation("reference")`: FP32 products with FP32 copies of the weights, which the model
keeps from the first call on.

Shapes: B rows, S positions, D hidden width, T reference tokens, V vocabulary entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.bench.sizes import HuginnSizes
from loopscope.kernels.choice import implementation
from loopscope.readout import NonlinearPath, autograd_coefficients, nonlinear_path_from_states
from loopscope.readout.affine.autograd import AutogradCoefficients
from loopscope.readout.affine.sources import full_precision_products

STEP = 0.3
SPREAD = 4.0
"""Standard deviation of the logits: a fresh head's are nearly flat."""
CONTEXT = 42
"""One position in so many, the first ones of a row, is no reference token."""


class HuginnUpdate:
    """Coda and head in BF16, two BF16 states, and a label at nearly every position."""

    def __init__(self, size: HuginnSizes, device: torch.device) -> None:
        from loopscope.models.huginn import Huginn, HuginnConfig
        from loopscope.models.random_weights import fill_randomly

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
