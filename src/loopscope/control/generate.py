"""Generation under a policy: every token takes the loops, the scales and the readout that the policy gives it.

A new token runs loop by loop, reads the keys and values that earlier tokens left (the cache rule of `act`), and stops
where the policy decides. Rows of a batch do not touch each other: a batch gives the tokens of its rows one at a time.
What was saved is therefore counted, in loops and checks, and does not show in the time that a batch takes.

`impl="reference"` keeps nothing and runs the policy on the whole text again for every token. Both choose the same
tokens, except where a check reads logits through layers that attend (Huginn's coda): there a new token's check reads
earlier tokens as they stopped, and the whole text at once reads them as they were in that loop.

A drawn initial state is seeded by question and position (`models.families.decoder`), for prompt and new tokens alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from loopscope.control.act import Acted, ReadAt, act_on, keeping_keys
from loopscope.control.policies import Policy
from loopscope.models.generate import (
    Generation,
    GenerationPlan,
    NextLogits,
    Sampler,
    continue_rows,
    last_positions,
    plain_logits,
)
from loopscope.models.in_memory import ModelSpec
from loopscope.models.layers.positions import LoopCache
from loopscope.models.load import load_model
from loopscope.models.protocol import LoopedModel
from loopscope.models.tokenizer import Tokenizer, tokenizer_of

_GREEDY = Sampler()
Impl = Literal["auto", "cached", "reference"]


@dataclass(frozen=True)
class Generated(Generation):
    """What was generated, one entry per prompt.

    Attributes:
        texts: the new tokens as text, up to the stop text; None where there is no tokenizer.
        loops: for every new token the loops of the position that it was read from.
        checks: and how often that position's logits were read to decide.
    """

    texts: list[str] | None = None
    loops: list[list[int]] = field(default_factory=list)
    checks: list[list[int]] = field(default_factory=list)


@torch.no_grad()
def generate(
    model: ModelSpec,
    prompts: str | Sequence[str] | Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    depth: int | None = None,
    policy: Policy | None = None,
    stop: str | Sequence[str] = (),
    tokenizer: Any = None,
    eos_ids: Sequence[int] | None = None,
    sampler: Sampler = _GREEDY,
    source_rows: Sequence[int] | None = None,
    impl: Impl = "auto",
) -> Generated:
    """Continue prompts at a chosen depth, or with a policy that decides for every token.

    Args:
        model: a specification, or a model.
        prompts: texts, or token ids, one list per row, of any lengths.
        max_new_tokens: the limit for every row.
        depth: loops per token, and the most that a policy may take; the trained depth when left out.
        policy: when to stop, how far to step, where to read; left out, every token takes `depth` full steps.
        stop: texts at which a row ends, such as the word that begins the next few-shot example.
        tokenizer: for texts; the model's own when left out.
        eos_ids: end-of-sequence ids; the configuration's when left out.
        sampler: greedy unless it has a temperature.
        source_rows: seeds a drawn initial state, one per row.
        impl: "cached", "reference", or "auto": cached where the model can.

    Raises:
        LoopscopeError: one line for whatever is wrong.
    """
    loaded = load_model(model) if isinstance(model, str) else model
    assert isinstance(loaded, LoopedModel)
    stops = [stop] if isinstance(stop, str) else list(stop)
    given: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else [*prompts]
    as_text = bool(stops) or any(isinstance(one, str) for one in given)
    words = tokenizer_of(loaded, tokenizer) if as_text or tokenizer is not None else None
    texts = {one: [*words.prefix_ids, *words.encode(one)] for one in given if words and isinstance(one, str)}
    rows = [texts[one] if isinstance(one, str) else list(one) for one in given]
    ends = None if words is None or not stops else _ends(words, stops)
    plan = GenerationPlan(loaded, rows, max_new_tokens, depth, eos_ids, source_rows)
    noted: list[list[list[int]]] = []
    if policy is None:
        next_logits = plain_logits(loaded, plan, impl)
        noted = [[[plan.depth, 0]] * len(rows)] * max_new_tokens
    else:
        next_logits = _next_logits(loaded, plan, policy, impl, noted)
    found = continue_rows(plan, next_logits, sampler, ends)
    loops, checks = (
        [[counts[row][kind] for counts in noted[: len(new)]] for row, new in enumerate(found.tokens)]
        for kind in range(2)
    )
    answers = None if words is None else [_until(words.decode(new), stops) for new in found.tokens]
    return Generated(found.tokens, found.finished, answers, loops, checks)


def _next_logits(
    model: LoopedModel, plan: GenerationPlan, policy: Policy, impl: Impl, noted: list[list[list[int]]]
) -> NextLogits:
    """Of the last position of every row, whose loops and checks are noted."""
    keeping, cache = keeping_keys(model), LoopCache(plan.width)

    def next_logits(rows: list[list[int]]) -> Tensor:
        if impl == "reference":
            acted, last_B2 = act_on(model, plan.whole(rows), policy, plan.depth), last_positions(rows)
        else:
            batch, last_B2 = plan.new_positions(rows, cache)
            context = keeping.embed(batch, cache)
            read_at: ReadAt = lambda state, where: keeping.readout_cached(state, context, where)  # noqa: E731
            acted = Acted(model, context, policy, plan.depth, cache, read_at)
        at = tuple(last_B2.to(acted.loops_BS.device).T)
        noted.append(torch.stack([acted.loops_BS[at], acted.checks_BS[at]], dim=-1).tolist())
        return acted.logits(last_B2)

    return next_logits


def _ends(words: Tokenizer, stops: Sequence[str]) -> Callable[[Sequence[int]], bool]:
    longest = max(len(stop) for stop in stops)

    def ends(new: Sequence[int]) -> bool:
        # A token has at least a byte of text, so the last ones are enough to hold the longest stop text.
        tail = words.decode(new[-(4 * longest + 8) :])
        return any(stop in tail for stop in stops)

    return ends


def _until(text: str, stops: Sequence[str]) -> str:
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]
