"""Attractor: a backbone, and core blocks iterated to a fixed point.

    c = prelude(wte[ids]),   y_0 = c,   y_{t+1} = f(y_t) = core(y_t + c) − y_t,   logits_t = lm_head(ln_f(y_t))
    block:  x ← x + c_proj(attention(norm_1(x))),   x ← x + proj(½ relu(fc(norm_2(x)))²)

Core blocks scale each branch by gamma_max · sigmoid(raw_gamma), channel by channel. Queries and keys are rotated in
interleaved pairs and then normed head by head without a weight.

The model was trained at convergence: there is no trained depth. A step here is one plain iteration, which is causal.
The published result is that of Anderson's method (`solve`), whose weights come from a whole row: later tokens and
padding change earlier logits, and one row's stopping rule waits for the others.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from loopscope.models.batch import Batch
from loopscope.models.families import FamilyConfig, Layers, Number, Size, family, only
from loopscope.models.families.decoder import PreNormBlock, Readout
from loopscope.models.families.parcae import RopeSettings, StoredRotation
from loopscope.models.layers.attention import RotatedThenNormed
from loopscope.models.layers.blocks import Embedding, Linear, Names, RMSNorm, SquaredReluMLP
from loopscope.models.layers.positions import KeyValueCache
from loopscope.models.protocol import Context

WORST_RESIDUAL = 1e4
RIDGE = 1e-4
"""On the diagonal of the residuals' products in Anderson's method."""


class AttractorConfig(FamilyConfig):
    """config.json of an Attractor checkpoint."""

    title = "Attractor"
    widths = ("n_embd", "num_attention_heads", "num_key_value_heads", "")
    fixed = only(
        mlp_class_name="BaseMLP", init_strategy="scaled-zero", bias=False, qk_bias=False, clip_qkv=None,
        logit_softcap=None, causal=True, randomize_positions_from=None, mup_model_scaling_factor=1
    )  # fmt: skip
    vocab_size: Size
    padded_vocab_size: Size | None = None
    n_embd: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    intermediate_size: Size | None = None
    n_backbone_layers: Layers = 6
    n_fp_blocks: Layers = 1
    block_size: Size = 2048
    norm_eps: Number = 1e-5
    tie_embeddings: bool = True
    layer_scale_init: Number | None = 0.25
    gamma_max: Number = 1.0
    solver: Literal["anderson", "fpi"] = "anderson"
    max_iter: Size = 12
    min_iter: int = 0
    tol: float = 1e-3
    anderson_m: Size = 5
    anderson_beta: Number = 1.0
    rope_settings: RopeSettings = RopeSettings()
    # The defaults of the published code's base class are not the releases'.
    norm_class_name: Literal["RMSNorm"]
    nonlin_name: Literal["ReLU2"]
    qk_norm: Literal[True]


class AttractorBlock(PreNormBlock):
    """Norms before each branch; `gamma_max` is that of a core block."""

    def __init__(self, config: AttractorConfig, gamma_max: float | None) -> None:
        width, inner = config.n_embd, config.intermediate_size or 4 * config.n_embd
        attention = RotatedThenNormed(config.sizes, "c_q c_k c_v c_proj")
        super().__init__(attention, SquaredReluMLP(width, inner), lambda: RMSNorm(width, config.norm_eps))
        self.gamma_max = gamma_max
        if gamma_max is not None:
            self.raw_gamma_attn = nn.Parameter(torch.zeros(width))
            self.raw_gamma_mlp = nn.Parameter(torch.zeros(width))

    def scaled(self, branch: Tensor, names: Names) -> Tensor:
        """The branch times its gate."""
        if self.gamma_max is None:
            return branch
        raw = self.raw_gamma_attn if names is self.attention_names else self.raw_gamma_mlp
        return branch * (self.gamma_max * torch.sigmoid(raw))


class Solution(NamedTuple):
    """Where a solver ended.

    Attributes:
        state: y, [B, S, D].
        iterations: evaluations of f.
        residual: the last relative residual |f(y) − y| / |y|, of the row where it is largest.
    """

    state: Tensor
    iterations: int
    residual: float


@family("attractor", AttractorConfig, "AttractorConfig", "EQLMConfig", "Attractor")
class Attractor(StoredRotation):
    """Attractor at any size; padding on either side for plain iteration."""

    boundary = "the iterate y, before the last norm"

    def __init__(self, config: AttractorConfig) -> None:
        wide, vocabulary = config.n_embd, config.padded_vocab_size or config.vocab_size
        super().__init__(config, wide, vocabulary, config.block_size, None)
        gamma = None if config.layer_scale_init is None else config.gamma_max
        counts = {"prelude": (config.n_backbone_layers, None), "core_block": (config.n_fp_blocks, gamma)}
        parts: dict[str, nn.Module] = {
            name: nn.ModuleList(AttractorBlock(config, gamma_max) for _ in range(count))
            for name, (count, gamma_max) in counts.items()
        }
        parts |= {"wte": Embedding(vocabulary, wide), "ln_f": RMSNorm(wide, config.norm_eps)}
        self.transformer: Any = nn.ModuleDict(parts)
        self.lm_head = Linear(wide, vocabulary, bias=False)
        self.tie_head(config.tie_embeddings, "transformer.wte.weight")

    def embed(self, batch: Batch, cache: KeyValueCache | None = None) -> Context:
        """c, which every step reads and y_0 is."""
        batch, attention = self.enter(batch, cache)
        c = self.run(self.transformer["prelude"], self.transformer["wte"](batch.input_ids), attention)
        return Context(self.start(batch, lambda: c), batch, c, attention)

    def step(self, state: Tensor, context: Context) -> Tensor:
        """One plain iteration, f(y)."""
        assert context.injection is not None
        return self.run(self.transformer["core_block"], state + context.injection, context.extra) - state

    def readout_layers(self) -> Readout:
        """The norm and the head."""
        return Readout(self.lm_head, self.transformer["ln_f"])

    @torch.no_grad()
    def solve(
        self, batch: Batch, *, max_iter: int | None = None, min_iter: int | None = None, tol: float | None = None
    ) -> Solution:
        """The published result: the checkpoint's own solver, over all rows of the batch at once.

        Left out, the limits are the checkpoint's; the published evaluation takes 64, 8 and 1e-4.
        """
        config, context = self.config, self.embed(batch)
        most = config.max_iter if max_iter is None else max_iter
        least = min(config.min_iter if min_iter is None else min_iter, most)
        tolerance, memory = config.tol if tol is None else tol, config.anderson_m
        anderson = config.solver == "anderson" and most > 2
        shape = context.state.shape
        points: list[Tensor] = []
        values: list[Tensor] = []
        x = context.state
        for count in range(1, most + 1):
            if anderson and count > 2:
                x = _mixed(points[-memory:], values[-memory:], config.anderson_beta).reshape(shape).to(x.dtype)
            value = self.step(x, context)
            flat_x, flat_value = x.flatten(1).float(), value.flatten(1).float()
            points, values = [*points[1 - memory :], flat_x], [*values[1 - memory :], flat_value]
            residual = float(((flat_value - flat_x).norm(dim=1) / flat_x.norm(dim=1).clamp_min(1e-9)).max())
            x = value
            if (not anderson or count > 2) and count >= least and not tolerance <= residual <= WORST_RESIDUAL:
                break
        return Solution(x, count, residual)


def _mixed(points: list[Tensor], values: list[Tensor], beta: float) -> Tensor:
    """Anderson's next point of every row, [B, S·D], from the last points and their values."""
    x, f = torch.stack(points, 1), torch.stack(values, 1)
    residuals, count = f - x, x.shape[1]
    system = x.new_zeros(x.shape[0], count + 1, count + 1)
    system[:, 0, 1:] = system[:, 1:, 0] = 1.0
    system[:, 1:, 1:] = residuals @ residuals.mT + RIDGE * torch.eye(count, dtype=x.dtype, device=x.device)
    right = x.new_zeros(x.shape[0], count + 1, 1)
    right[:, 0] = 1.0
    weights = torch.linalg.solve(system, right)[:, 1:].mT
    return cast(Tensor, (beta * weights @ f + (1 - beta) * weights @ x)[:, 0])
