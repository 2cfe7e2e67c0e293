"""Generation under a policy: every token takes the loops and the scales that the policy gives it.

A new token runs loop by loop, reads the keys and values that earlier tokens left under the cache rule
(`cache_rules`), and stops where the policy says so. Rows of a batch do not touch each other: a row's entries beyond its
own stop are its own, whatever the rows beside it do, so that a batch gives the tokens of its rows one at a time. What
was saved is therefore counted, in loops, calls and checks, and not seen in the time that a batch takes.

`impl="reference"` keeps nothing and runs the policy on the whole text again for every token. Both choose the same
tokens, except where a check reads logits through layers that attend (Huginn's coda): there a new token's check reads
earlier tokens as they stopped, and the whole text at once reads them as they were in that loop.

A drawn initial state is seeded by question and position (`models.initial_state`), for prompt and new tokens alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from loopscope.control.acting import Acted, Course, act_on, check_rule, seeing_kept
from loopscope.control.cache_rules import CacheRule, LoopCache
from loopscope.control.policy import Policy
from loopscope.errors import LoopscopeError, choice
from loopscope.models.generate import (
    CachedModel,
    Generation,
    GenerationPlan,
    NextLogits,
    Sampler,
    can_cache,
    continue_rows,
    last_positions,
)
from loopscope.models.generate import generate as generate_plainly
from loopscope.models.in_memory import ModelSpec
from loopscope.models.load import ModelCard, load_model
from loopscope.models.protocol import LoopedModel
from loopscope.models.tokenizer import Tokenizer, load_tokenizer
from loopscope.models.walk import read

_GREEDY = Sampler()
Impl = Literal["auto", "cached", "reference"]
PromptRule = Literal["policy", "full"]


@dataclass(frozen=True)
class Generated(Generation):
    """What was generated, one entry per prompt.

    Attributes:
        texts: the new tokens as text, up to the stop text; None where there is no tokenizer.
        loops: for every new token the loops of the position that it was read from.
        calls: for every new token that position's calls of the looped block, under the cache rule.
        checks: and how often its logits were read to decide.
        prompt_loops: the mean loops of the prompt's positions.
    """

    texts: list[str] | None = None
    loops: list[list[int]] = field(default_factory=list)
    calls: list[list[int]] = field(default_factory=list)
    checks: list[list[int]] = field(default_factory=list)
    prompt_loops: list[float] = field(default_factory=list)


@torch.no_grad()
def generate(
    model: ModelSpec,
    prompts: str | Sequence[str] | Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    depth: int | None = None,
    policy: Policy | None = None,
    cache: CacheRule = "latest",
    prompt: PromptRule = "policy",
    stop: str | Sequence[str] = (),
    tokenizer: Any = None,
    eos_ids: Sequence[int] | None = None,
    sampler: Sampler = _GREEDY,
    source_rows: Sequence[int] | None = None,
    impl: Impl = "auto",
) -> Generated:
    """Continue prompts at a depth of choice, or with a policy that decides for every token.

    Args:
        model: a specification, or a model.
        prompts: texts, or token ids, one list per row, of any lengths.
        max_new_tokens: the limit for every row.
        depth: loops per token, and the most that a policy may take; the trained depth when left out.
        policy: when to stop and how far to step; left out, every token takes `depth` full steps.
        cache: what later tokens read of one that stopped: "latest", "shared", "held" or "full" (`cache_rules`).
        prompt: "policy", or "full" where the prompt's positions take every loop and the policy begins after them.
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
    choice("prompt", prompt, ("policy", "full"))
    stops = [stop] if isinstance(stop, str) else list(stop)
    given: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else [*prompts]
    as_text = bool(stops) or any(isinstance(one, str) for one in given)
    words = tokenizer_of(loaded, tokenizer) if as_text or tokenizer is not None else None
    rows = [_ids(words, one) for one in given]
    ends = None if words is None or not stops else _ends(words, stops)
    if policy is None:
        found: Generation = generate_plainly(
            loaded,
            rows,
            max_new_tokens=max_new_tokens,
            depth=depth,
            eos_ids=eos_ids,
            sampler=sampler,
            source_rows=source_rows,
            impl=impl,
            ends=ends,
        )
        taken = loaded.trained_depth if depth is None else depth
        effort = _Effort.constant(taken, [len(new) for new in found.tokens])
    else:
        plan = GenerationPlan.of(loaded, rows, max_new_tokens, depth, eos_ids, source_rows)
        effort = _Effort([len(row) for row in rows])
        next_logits = _next_logits(loaded, plan, policy, cache, prompt, impl, effort)
        found = continue_rows(plan, next_logits, sampler, ends)
    texts = None if words is None else [_until(words.decode(new), stops) for new in found.tokens]
    return effort.of(found, texts)


def tokenizer_of(model: LoopedModel, given: Any = None) -> Tokenizer:
    """The tokenizer that was given, by name or as an object, or the one of the model's checkpoint."""
    if given is not None:
        return given if isinstance(given, Tokenizer) else load_tokenizer(given)
    card = getattr(model, "card", None)
    if not isinstance(card, ModelCard) or card.checkpoint is None:
        raise LoopscopeError(f"{model.name} comes without a tokenizer: give tokenizer=, or token ids")
    spec, revision = card.checkpoint
    return load_tokenizer(spec, revision=revision)


def _next_logits(
    model: LoopedModel,
    plan: GenerationPlan,
    policy: Policy,
    rule: CacheRule,
    prompt: PromptRule,
    impl: Impl,
    effort: _Effort,
) -> NextLogits:
    cached = impl == "cached" or (impl == "auto" and can_cache(model))
    check_rule(model, rule, in_parallel=not cached)
    prompts = torch.tensor([len(row) for row in plan.prompts])

    def by_reference(rows: list[list[int]]) -> Tensor:
        batch = plan.whole(rows)
        asked = batch.attention_mask
        if prompt == "full":
            asked = asked & (torch.arange(asked.shape[1]) >= prompts[:, None])
        acted = act_on(model, batch, policy, plan.depth, rule, asked)
        effort.note(acted, last_positions(rows))
        return read(model, acted.state_BSD, last_positions(rows), None, acted.context)

    if not cached:
        return by_reference
    if not isinstance(model, CachedModel) or not can_cache(model):
        raise LoopscopeError(f'{model.name} keeps no keys and values; generate with impl="reference"')
    keeping = model
    cache = LoopCache(plan.width, rule)
    course = Course(model, policy, plan.depth, rule, cache)

    def by_cache(rows: list[list[int]]) -> Tensor:
        is_prompt = cache.used == 0
        batch, last = plan.new_positions(rows, cache)
        context = keeping.embed_cached(batch, cache)
        asked = context.batch.attention_mask
        if is_prompt:
            context = seeing_kept(context, cache)
            asked = asked & (prompt == "policy")
        acted = course.run(context, asked, lambda state, where: keeping.readout_cached(state, context, where))
        effort.note(acted, last)
        return keeping.readout_cached(acted.state_BSD, context, last)

    return by_cache


class _Effort:
    """What each new token took."""

    def __init__(self, prompts: Sequence[int]) -> None:
        self._prompts = prompts
        self._noted: list[list[list[int]]] = []
        self._prompt_loops: list[float] = []

    @classmethod
    def constant(cls, loops: int, lengths: Sequence[int]) -> _Effort:
        """Where every position took the same."""
        effort = cls([])
        effort._noted = [[[loops, loops, 0]] * len(lengths) for _ in range(max(lengths, default=0))]
        effort._prompt_loops = [float(loops)] * len(lengths)
        return effort

    def note(self, acted: Acted, last_B2: Tensor) -> None:
        """One more token of every row, read at these positions."""
        row, place = last_B2.to(acted.loops_BS.device).unbind(1)
        counted = torch.stack([acted.loops_BS[row, place], acted.calls_BS[row, place], acted.checks_BS[row, place]], 1)
        self._noted.append(counted.tolist())
        if not self._prompt_loops:
            self._prompt_loops = [
                float(loops[:length].double().mean())
                for loops, length in zip(acted.loops_BS, self._prompts, strict=True)
            ]

    def of(self, found: Generation, texts: list[str] | None) -> Generated:
        """What was generated, with what it took."""
        loops, calls, checks = (
            [[noted[row][kind] for noted in self._noted[: len(new)]] for row, new in enumerate(found.tokens)]
            for kind in range(3)
        )
        return Generated(found.tokens, found.finished, texts, loops, calls, checks, self._prompt_loops)


def _ids(words: Tokenizer | None, prompt: str | Sequence[int]) -> list[int]:
    if not isinstance(prompt, str):
        return list(prompt)
    assert words is not None
    return [*words.prefix_ids, *words.encode(prompt)]


def _ends(words: Tokenizer, stops: Sequence[str]) -> Callable[[Sequence[int]], bool]:
    longest = max(len(stop) for stop in stops)

    def ends(new: Sequence[int]) -> bool:
        # A token has at least a byte of text, so the last ones are enough to hold the longest stop text.
        tail = words.decode(new[-(4 * longest + 8) :])
        return any(stop in tail for stop in stops)

    return ends


def _until(text: str, stops: Sequence[str]) -> str:
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]
