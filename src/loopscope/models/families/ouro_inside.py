"""Ouro with its state taken inside the stack: the same weights and the same loops, read through a nonlinear readout.

    H_0 = layers[0 … k−1](embedding),   H_{t+1} = layers[0 … k−1](norm(layers[k …](H_t))),
    logits_t = lm_head(norm(layers[k …](H_t)))

Reading H_t is reading Ouro after t + 1 loops, exactly. What differs is the line H + αD along which an update is
followed, and that its readout is no longer affine: it shows what of a finding belongs to the affine head.

Shapes: B rows, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError
from loopscope.models.base import LoopedModule
from loopscope.models.batch import Batch
from loopscope.models.families.ouro import Ouro, OuroConfig, OuroStack
from loopscope.models.layers.attention import surroundings
from loopscope.models.layers.blocks import RMSNorm, read_blocks, readout_surroundings, run_blocks
from loopscope.models.layers.linear import Linear, linear
from loopscope.models.layers.llama import stored_frequencies
from loopscope.models.protocol import BodyAndHead, Context


def build_ouro(config: OuroConfig) -> Ouro | OuroInside:
    """Ouro with its state where the configuration takes it."""
    return OuroInside(config) if config.inside else Ouro(config)


class OuroInside(LoopedModule):
    """An Ouro whose state is that before one of its layers; rows are padded on the right."""

    family = "ouro"
    name = "ouro"

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        if config.trained_depth < 2:
            raise LoopscopeError(
                "inside: the model was trained for one loop, which its first state inside has behind it"
            )
        self.config, self.layer = config, config.inside
        self.boundary = f"the shared stack's stream before its layer {self.layer}, in the loop after the one counted"
        self.hidden_size, self.vocabulary_size = config.hidden_size, config.vocabulary_size
        self.max_positions, self.eos_ids = config.max_positions, config.eos_ids
        self.trained_depth = config.trained_depth - 1
        self.model = OuroStack(config)
        self.lm_head = Linear(config.hidden_size, config.vocabulary_size, bias=False)
        self.tie()

    def tied_tensors(self) -> dict[str, str]:
        """The head shares the embedding where the configuration ties them."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.config.tied else {}

    def ignorable_tensors(self) -> set[str]:
        """Rotary frequencies, which some tools store."""
        return stored_frequencies(self.config.layers)

    def embed(self, batch: Batch) -> Context:
        """H_0: the layers before the boundary, once."""
        self.check_batch(batch)
        if batch.padding == "left":
            raise LoopscopeError(f"{self.name} needs padding on the right (Batch.from_rows pads so)")
        batch = batch.to(self.device)
        around = surroundings(batch, self.config.rotary, self.dtype)
        if batch.initial_state is not None:
            return Context(batch.initial_state.to(self.dtype), batch, extra=around)
        embedded: Tensor = self.model.embed_tokens(batch.input_ids)
        return Context(run_blocks(embedded, self._before(), around, range(self.layer)).state, batch, extra=around)

    def step(self, state: Tensor, context: Context) -> Tensor:
        """The rest of the stack, its norm, and the layers before the boundary."""
        stack, around = self.model, context.extra
        normed = run_blocks(state, self._after(), around, range(self.layer, self.config.layers), stack.norm).normed
        return run_blocks(normed, self._before(), around, range(self.layer)).state

    def _before(self) -> list[nn.Module]:
        return list(self.model.layers)[: self.layer]

    def _after(self) -> list[nn.Module]:
        return list(self.model.layers)[self.layer :]

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Logits through the rest of the stack. Rows begin at position 0."""
        return self.body_and_head(dtype)(state, positions)

    def body_and_head(self, dtype: torch.dtype | None = None) -> BodyAndHead:
        """The readout as the rest of the stack with its norm, and the head."""
        live = nn.ModuleDict({"rest": nn.ModuleList(self._after()), "norm": self.model.norm, "head": self.lm_head})
        modules = cast(nn.ModuleDict, self.in_dtype(live, dtype, mixes=True))

        def body(state: Tensor, positions: Tensor | None) -> Tensor:
            around = readout_surroundings(self, state, self.config.rotary, dtype)
            x = state if dtype is None else state.to(dtype)
            rest = list(modules["rest"].children())
            return read_blocks(x, rest, around, range(len(rest)), cast(RMSNorm, modules["norm"]), positions)

        def matrix() -> Tensor:
            return modules["head"].weight  # type: ignore[return-value]

        return BodyAndHead(body, lambda hidden: linear(hidden, matrix()), self.vocabulary_size, matrix)
