"""Generation at a chosen depth, so that answers can be checked.

`impl="cached"` keeps keys and values per loop and layer and runs one new position per step; `impl="reference"`
runs the whole sequence again for every token. Both choose the same tokens. Prompts of different lengths are
padded on the right and every row continues at its own length, so no row sees padding.

The next token is the likeliest, or drawn with temperature, top-k and top-p. Every row draws from a stream of its own
(seed and row), in float64, by inverting the distribution function: what a row draws does not depend on the other
rows. Families that draw their initial state draw it for every position once, prompt and continuation alike, before the
first token: a generated token gets the state that its position would have had in a prompt.

Here every token takes the same number of loops; `loopscope.control.generate` lets a policy decide.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.layers.positions import KeyValueCache
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk, asks


@dataclass(frozen=True)
class Sampler:
    """Temperature 0 takes the likeliest token (ties: the lowest id).

    Attributes:
        temperature: divides the logits.
        top_k: keeps the k likeliest tokens.
        top_p: keeps the likeliest tokens until their probabilities reach p.
        seed: of the rows' streams.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise LoopscopeError(f"temperature must be at least 0 and finite, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise LoopscopeError(f"top_k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise LoopscopeError(f"top_p must be above 0 and at most 1, not {self.top_p}")

    def uniforms(self, rows: int, count: int) -> Tensor:
        """[rows, count] float64: what each row will draw with, on the CPU."""
        streams = [torch.Generator().manual_seed(self.seed + row) for row in range(rows)]
        return torch.stack([torch.rand(count, dtype=torch.float64, generator=stream) for stream in streams])

    def choose(self, logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
        """The next token of every row, [B] int64."""
        if self.temperature == 0:
            return logits_BV.argmax(dim=-1)
        probability, token = torch.softmax(logits_BV.double() / self.temperature, dim=-1).sort(
            dim=-1, descending=True, stable=True
        )
        if self.top_k is not None:
            probability[:, self.top_k :] = 0
            probability /= probability.sum(dim=-1, keepdim=True)
        if self.top_p is not None:
            before = probability.cumsum(dim=-1) - probability
            probability[before >= self.top_p] = 0
        reached = probability.cumsum(dim=-1)
        target = uniform_B.to(logits_BV.device)[:, None] * reached[:, -1:]
        # Tails of probability zero share the last value of `reached`, which the target never exceeds.
        index = torch.searchsorted(reached, target, right=True)
        kept = (probability > 0).sum(dim=-1, keepdim=True) - 1
        return token.gather(-1, torch.minimum(index, kept))[:, 0]


_GREEDY = Sampler()


@dataclass(frozen=True)
class Generation:
    """What was generated, one list per prompt.

    Attributes:
        tokens: the new tokens, without the prompt and without the end-of-sequence token.
        finished: whether the row ended with an end-of-sequence token rather than at the limit.
    """

    tokens: list[list[int]]
    finished: list[bool]


@torch.no_grad()
def generate(
    model: LoopedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    depth: int | None = None,
    eos_ids: Sequence[int] | None = None,
    sampler: Sampler = _GREEDY,
    source_rows: Sequence[int] | None = None,
    impl: Literal["auto", "cached", "reference"] = "auto",
    ends: Callable[[Sequence[int]], bool] | None = None,
) -> Generation:
    """Continues every prompt at `depth` loops (the trained depth when left out) up to an end-of-sequence token.

    Args:
        model: any looped model.
        prompts: token ids, one list per row, of any lengths.
        max_new_tokens: the limit for every row.
        depth: loops per token.
        eos_ids: end-of-sequence ids; the configuration's when left out.
        sampler: greedy unless it has a temperature.
        source_rows: seeds a drawn initial state, one per row.
        impl: "cached", "reference", or "auto": cached where the model can.
        ends: called with the new tokens of a row after each, says whether the row ends with them.
    """
    plan = GenerationPlan(model, prompts, max_new_tokens, depth, eos_ids, source_rows)
    return continue_rows(plan, plain_logits(model, plan, impl), sampler, ends)


NextLogits = Callable[[list[list[int]]], Tensor]
"""From the rows as they are to the logits of their next tokens, [B, V]; called once for every new token."""


def can_cache(model: LoopedModel) -> bool:
    """Whether a model continues from kept keys and values.

    Its `embed(batch, cache)` embeds new positions, given in `batch.position_ids`, every loop of its `step` has keys of
    its own, and `readout_cached(state, context, positions)` gives logits of new positions.
    """
    return asks(model.embed, "cache") and hasattr(model, "readout_cached")


class GenerationPlan:
    """What is to be continued, checked.

    Attributes:
        prompts: token ids.
        limit: the most new tokens of a row.
        depth: loops per token.
        stops: end-of-sequence ids.
        source_rows: what seeds a drawn initial state.
        width: the most positions that a row may have.
        initial_BSD: the drawn states of all these positions; None for families that draw none.
    """

    def __init__(
        self,
        model: LoopedModel,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        depth: int | None,
        eos_ids: Sequence[int] | None,
        source_rows: Sequence[int] | None,
    ) -> None:
        depth = model.trained_depth if depth is None else depth
        if depth is None:
            raise LoopscopeError(f"{model.name} does not say for how many loops it was trained: give depth=")
        if depth < 0 or max_new_tokens < 1:
            raise LoopscopeError(f"depth {depth} and max_new_tokens {max_new_tokens} must be at least 0 and 1")
        self.prompts, self.limit, self.depth = [list(prompt) for prompt in prompts], max_new_tokens, depth
        self.stops = frozenset(getattr(model, "eos_ids", ()) if eos_ids is None else eos_ids)
        self.source_rows = source_rows
        self.width = Batch.from_rows(prompts, source_rows=source_rows).input_ids.shape[1] + max_new_tokens
        most = getattr(model, "max_positions", None)
        if most is not None and self.width > most:
            raise LoopscopeError(
                f"prompt and continuation need {self.width} positions but {model.name} has {most}; lower max_new_tokens"
            )
        self.initial_BSD: Tensor | None = None
        draw = getattr(model, "draw_initial_state", None)
        if draw is not None and getattr(model, "draws", True):
            rows = [0] * len(prompts) if source_rows is None else list(source_rows)
            self.initial_BSD = draw(rows, [self.width] * len(prompts), self.width).cpu()

    def whole(self, rows: list[list[int]]) -> Batch:
        """The rows so far as one batch."""
        lengths = [len(prompt) for prompt in self.prompts]
        batch = Batch.from_rows(rows, source_rows=self.source_rows, prompt_lengths=lengths)
        if self.initial_BSD is None:
            return batch
        return dataclasses.replace(batch, initial_state=self.initial_BSD[:, : batch.input_ids.shape[1]])

    def new_positions(self, rows: list[list[int]], cache: KeyValueCache) -> tuple[Batch, Tensor]:
        """What the cache does not hold yet, and where in it each row's last token is, [B, 2]."""
        if cache.used == 0:
            fresh, prompts = Batch.from_rows(rows), torch.tensor([len(row) for row in rows])
            ids, mask, last = fresh.input_ids, fresh.attention_mask, last_positions(rows)
            positions = torch.arange(ids.shape[1]).expand_as(ids)
        else:
            ids = torch.tensor([[row[-1]] for row in rows])
            mask, prompts = torch.ones_like(ids, dtype=torch.bool), None
            positions = torch.tensor([[len(row) - 1] for row in rows])
            last = torch.tensor([[row, 0] for row in range(len(rows))])
        drawn = self.initial_BSD
        initial = None if drawn is None else drawn.gather(1, positions[..., None].expand(*ids.shape, drawn.shape[2]))
        cache.used = max(len(row) for row in rows)
        return Batch(ids, mask, positions, initial_state=initial, prompt_lengths=prompts), last


def continue_rows(
    plan: GenerationPlan,
    next_logits: NextLogits,
    sampler: Sampler = _GREEDY,
    ends: Callable[[Sequence[int]], bool] | None = None,
) -> Generation:
    """One token after the other for every row, until each has ended or reached the limit."""
    rows = [list(prompt) for prompt in plan.prompts]
    starts = [len(row) for row in rows]
    lengths = list(starts)
    finished = [False] * len(rows)
    uniforms = sampler.uniforms(len(rows), plan.limit)
    for index in range(plan.limit):
        chosen = sampler.choose(next_logits(rows), uniforms[:, index]).tolist()
        for row, token in enumerate(chosen):
            finished[row] = finished[row] or token in plan.stops
            # A finished row keeps its place in the batch; what it is fed no longer matters.
            rows[row].append(token)
            lengths[row] += not finished[row]
            if ends is not None and not finished[row]:
                finished[row] = ends(rows[row][starts[row] :])
        if all(finished):
            break
    tokens = [row[start:length] for row, start, length in zip(rows, starts, lengths, strict=True)]
    return Generation(tokens, finished)


def plain_logits(model: LoopedModel, plan: GenerationPlan, impl: Literal["auto", "cached", "reference"]) -> NextLogits:
    """Every token at the depth of the plan; `impl` as for `generate`."""
    if impl == "cached" and not can_cache(model):
        raise LoopscopeError(f'{model.name} keeps no keys and values; generate with impl="reference"')
    cache, cached_model = KeyValueCache(plan.width), cast(Any, model)

    def whole(rows: list[list[int]]) -> Tensor:
        return Walk.of(model, plan.whole(rows)).to(plan.depth).read(last_positions(rows))

    def continued(rows: list[list[int]]) -> Tensor:
        batch, last = plan.new_positions(rows, cache)
        context = cached_model.embed(batch, cache)
        return cast(Tensor, cached_model.readout_cached(Walk(model, context).to(plan.depth).state, context, last))

    return whole if impl == "reference" or not can_cache(model) else continued


def last_positions(rows: list[list[int]]) -> Tensor:
    """(row, position) of every row's last token, [B, 2]."""
    return torch.tensor([[index, len(row) - 1] for index, row in enumerate(rows)])
