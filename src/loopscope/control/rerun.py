"""Policies acting on a model over a task: teacher-forced texts run again, and answers generated and scored.

`rerun` runs every question's reference with a policy acting on the states, so that what is decided early has its
consequences later, in the token's own loops and in those of the tokens after it. `answer` generates instead.

Both return a frame with one row per policy and question. Loops, calls and checks are means over the positions that
predict reference tokens, or new ones; those of the prompt stand apart in columns of their own. Utilities and accuracies
are those of a trace (`control.offline`): nats per token and the share of right tokens, or the right option.

    policy, row, example_id
    utility, accuracy                         rerun
    accuracy, text, finished, tokens, <each score>     answer
    loops, calls, checks, cost                cost is that of `control.cost`, of calls and checks
    prompt_loops, prompt_cost
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import polars as pl
import torch
from torch import Tensor

from loopscope.control.acting import Acted, act_on
from loopscope.control.answers import STOPS, accuracy, scored
from loopscope.control.cache_rules import CacheRule
from loopscope.control.cost import Costs
from loopscope.control.generating import PromptRule, generate, tokenizer_of
from loopscope.control.policy import Policy
from loopscope.errors import LoopscopeError, choice
from loopscope.measuring.layout import Layout, Question, collate, plan_batches
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.reading import Reading, readout_of
from loopscope.measuring.settings import BatchPolicy
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import read
from loopscope.tasks.encoding import LoadedTask

NO_COSTS = Costs()


@torch.no_grad()
def rerun(
    model: LoopedModel,
    task: LoadedTask,
    policies: Sequence[Policy],
    *,
    loops: int,
    cache: CacheRule = "latest",
    prompt: PromptRule = "policy",
    costs: Costs = NO_COSTS,
    tokenizer: Any = None,
    batch_size: str | int = "auto",
    readout_dtype: torch.dtype = torch.float32,
) -> pl.DataFrame:
    """Every policy on every question of a task, teacher-forced.

    Args:
        model: any looped model.
        task: what `load_task` gives.
        policies: their names tell the rows apart.
        loops: the most that a policy may take.
        cache: "latest", or "held" and "full" for models that keep no keys and values (`cache_rules`).
        prompt: "policy", or "full" where the positions before the reference take every loop.
        costs: what loops and checks cost.
        tokenizer: the model's own when left out.
        batch_size: "auto" or a number of questions; it changes no number beyond rounding.
        readout_dtype: the arithmetic of the readout.
    """
    if not policies:
        raise LoopscopeError("give at least one policy")
    _distinct(policies)
    choice("prompt", prompt, ("policy", "full"))
    found = []
    for batch in _batches(model, task, tokenizer, batch_size):
        sequences = collate(batch).sequences
        layout = Layout.of(batch, sequences, model.device)
        asked = _asked(layout, prompt)
        for policy in policies:
            acted = act_on(model, layout.batch, policy, loops, cache, asked)
            layout = layout.given(acted.context)
            reading = readout_of(model, readout_dtype).read(acted.state_BSD, layout)
            found.append(_forced_rows(policy, layout, reading, _right(model, acted, layout, reading), acted, costs))
    return pl.concat(found).sort("policy", "row", maintain_order=True)


def answer(
    model: LoopedModel,
    task: LoadedTask,
    policies: Sequence[Policy | None],
    *,
    loops: int,
    max_new_tokens: int,
    cache: CacheRule = "latest",
    prompt: PromptRule = "policy",
    costs: Costs = NO_COSTS,
    tokenizer: Any = None,
    batch_size: str | int = 16,
) -> pl.DataFrame:
    """Every policy generates an answer to every question of a task, which is scored (`answers`).

    Arguments as for `rerun`; None among the policies is plain generation at `loops` loops. Raw texts are kept.
    """
    _distinct([policy for policy in policies if policy is not None])
    if task.kind != "solution":
        raise LoopscopeError(f"{task.name} asks to choose an option: there is no answer to generate")
    scored(task.name, [], [])
    words = tokenizer_of(model, tokenizer)
    found = []
    for batch in _batches(model, task, words, batch_size):
        sequences = [question.example.sequences[0] for question in batch]
        for policy in policies:
            made = generate(
                model,
                [sequence.token_ids[: sequence.positions[0] + 1] for sequence in sequences],
                max_new_tokens=max_new_tokens,
                depth=loops,
                policy=policy,
                cache=cache,
                prompt=prompt,
                stop=STOPS[task.name],
                tokenizer=words,
                source_rows=[question.example.source_row for question in batch],
            )
            assert made.texts is not None
            scores = scored(task.name, made.texts, [question.text.texts[0] for question in batch])
            name = f"full depth {loops}" if policy is None else policy.name
            for place, (question, text, score) in enumerate(zip(batch, made.texts, scores, strict=True)):
                counts = (made.loops[place], made.calls[place], made.checks[place])
                mean = [sum(values) / max(len(values), 1) for values in counts]
                found.append(
                    {
                        "policy": name,
                        "row": question.row,
                        "example_id": question.example.id,
                        "accuracy": float(accuracy(score)),
                        "loops": mean[0],
                        "calls": mean[1],
                        "checks": mean[2],
                        "cost": float(costs(mean[1], mean[2])),
                        "prompt_loops": made.prompt_loops[place],
                        "tokens": len(made.tokens[place]),
                        "finished": made.finished[place],
                        "text": text,
                        **score,
                    }
                )
    return pl.DataFrame(found, infer_schema_length=None).sort("policy", "row", maintain_order=True)


def _batches(model: LoopedModel, task: LoadedTask, tokenizer: Any, batch_size: str | int) -> Iterator[list[Question]]:
    words = None if all(row.ids is not None for row in task.rows) else tokenizer_of(model, tokenizer)
    encoder = QuestionEncoder(words, getattr(model, "max_positions", None), "error")
    questions = encoder.questions(task, task.rows, 0)
    yield from plan_batches(questions, BatchPolicy.parse(batch_size).on(model.device.type))


def _asked(layout: Layout, prompt: PromptRule) -> Tensor:
    """Where the policy is asked; after the prompt alone if that is to run in full."""
    mask_BS = layout.batch.attention_mask
    if prompt == "policy":
        return mask_BS
    lengths = layout.batch.prompt_lengths
    assert lengths is not None
    return mask_BS & (torch.arange(mask_BS.shape[1], device=mask_BS.device) >= lengths[:, None])


def _right(model: LoopedModel, acted: Acted, layout: Layout, reading: Reading) -> Tensor:
    """The share of right tokens of every question; with options, whether the right one scores best."""
    if layout.options is not None:
        best_B = layout.options.gathered(reading.scores_R, -torch.inf).argmax(dim=1)
        return (best_B == layout.options.target).double()
    z_NV = read(model, acted.state_BSD, layout.positions_N2, None, acted.context)
    return layout.question_mean(layout.sequence_mean((z_NV.argmax(dim=-1) == layout.targets_N).double()))


class _Count(NamedTuple):
    """Means over positions that predict, and over the others, of every question."""

    scored_B: Tensor
    before_B: Tensor


def _count(values_RS: Tensor, layout: Layout) -> _Count:
    row_N, place_N = layout.positions_N2.unbind(1)
    predicting = torch.zeros_like(layout.batch.attention_mask)
    predicting[row_N, place_N] = True
    before_RS = layout.batch.attention_mask & ~predicting
    # The last token predicts nothing and its loops serve nobody.
    last_R = layout.batch.attention_mask.sum(1) - 1
    before_RS[torch.arange(len(last_R), device=last_R.device), last_R] = False
    before_R = (values_RS * before_RS).sum(1).double() / before_RS.sum(1).clamp(min=1)
    scored_N = values_RS[row_N, place_N].double()
    return _Count(layout.question_mean(layout.sequence_mean(scored_N)), layout.question_mean(before_R))


def _forced_rows(
    policy: Policy, layout: Layout, reading: Reading, right_B: Tensor, acted: Acted, costs: Costs
) -> pl.DataFrame:
    loops, calls, checks = (_count(values, layout) for values in (acted.loops_BS, acted.calls_BS, acted.checks_BS))
    return pl.DataFrame(
        {
            "policy": [policy.name] * len(layout.questions),
            "row": [question.row for question in layout.questions],
            "example_id": [question.example.id for question in layout.questions],
            "utility": reading.utility_B.cpu().numpy(),
            "accuracy": right_B.cpu().numpy(),
            "loops": loops.scored_B.cpu().numpy(),
            "calls": calls.scored_B.cpu().numpy(),
            "checks": checks.scored_B.cpu().numpy(),
            "cost": costs(calls.scored_B, checks.scored_B).cpu().numpy(),
            "prompt_loops": loops.before_B.cpu().numpy(),
            "prompt_cost": costs(calls.before_B, checks.before_B).cpu().numpy(),
        }
    )


def _distinct(policies: Sequence[Policy]) -> None:
    names = [policy.name for policy in policies]
    if len(set(names)) != len(names):
        raise LoopscopeError("give each policy a name of its own")
