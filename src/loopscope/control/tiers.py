"""Policies acting on the questions of a stored run: its model and texts again, with what they decide carried out.

The tier "rerun" is teacher-forced and gives utilities; "generate" writes answers and scores them. Both give, for every
policy, what following it over the run's trace gives (`offline.Result`), so that the tiers compare row by row. Cost is
that of the positions that predict; calls and checks are counted under the cache rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import polars as pl

from loopscope.control.cache_rules import CacheRule
from loopscope.control.cost import Costs
from loopscope.control.generating import PromptRule
from loopscope.control.offline import Result
from loopscope.control.policy import Policy
from loopscope.control.rerun import answer, rerun
from loopscope.errors import LoopscopeError
from loopscope.measuring.replay import Sources, request_of
from loopscope.store.run import StoredRun

Tier = Literal["offline", "rerun", "generate"]

MORE_TOKENS = 32
"""A generated answer may be this much longer than the longest reference."""


def acted(
    run: StoredRun,
    task: str,
    split: str,
    policies: Sequence[Policy],
    tier: Tier,
    *,
    loops: int,
    ids: Sequence[str] | None = None,
    cache: CacheRule = "latest",
    prompt: PromptRule = "policy",
    costs: Costs = Costs(),  # noqa: B008
) -> pl.DataFrame:
    """The frame of `rerun` or `answer`, of a run's model and the questions of one of its tasks.

    Args:
        run: its model and its questions are loaded again, and compared with what it recorded.
        task: one of its tasks.
        split: and the split.
        policies: fitted and frozen.
        tier: "rerun" or "generate".
        loops: the most that a policy may take.
        ids: the questions; all of them when left out.
        cache: what later tokens read of one that stopped (`cache_rules`).
        prompt: "policy", or "full" where the prompt takes every loop.
        costs: what loops and checks cost.
    """
    sources = Sources.of(run, request_of(run, None, None, None))
    sources.check()
    planned = next((t for t in sources.prepared.tasks if (t.task.name, t.task.split) == (task, split)), None)
    if planned is None:
        raise LoopscopeError(f"{run.path} has no task {task} of the split {split}")
    wanted = None if ids is None else set(ids)
    rows = tuple(row for row in planned.rows if wanted is None or row.id in wanted)
    chosen = dataclasses.replace(planned.task, rows=rows)
    given = {"loops": loops, "cache": cache, "prompt": prompt, "costs": costs, "tokenizer": sources.tokenizer}
    if tier == "rerun":
        return rerun(sources.model, chosen, policies, **given)  # type: ignore[arg-type]
    examples = chosen.encode(sources.tokenizer)
    longest = max(len(example.sequences[0].positions) for example in examples)
    return answer(sources.model, chosen, policies, max_new_tokens=longest + MORE_TOKENS, **given)  # type: ignore[arg-type]


def results(frame: pl.DataFrame) -> Mapping[str, Result]:
    """By policy, in the order of the questions; an answer has no utility."""
    found = {}
    for (name,), rows in frame.group_by("policy", maintain_order=True):
        ordered = rows.sort("row")
        nothing = np.full(ordered.height, np.nan)
        found[str(name)] = Result(
            ordered["utility"].to_numpy() if "utility" in ordered.columns else nothing,
            ordered["accuracy"].to_numpy(),
            ordered["loops"].to_numpy(),
            ordered["cost"].to_numpy(),
        )
    return found
