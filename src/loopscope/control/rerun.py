"""Policies acting on a model over a task: teacher-forced texts run again, and answers generated and scored.

`rerun` runs every question's reference with a policy acting on the states, so that what is decided early has its
consequences later, in the token's own loops and in those of the tokens after it. `answer` generates instead. `acted`
does either with the model and the questions of a stored run.

All return a frame with one row per policy and question. Loops, calls and checks are means over the positions that
predict reference tokens, or new ones; those of the prompt stand apart in columns of their own. Utilities and accuracies
are those of a trace (`control.offline`): nats per token and the share of right tokens, or the right option.

    policy, row, example_id
    utility, accuracy                         rerun
    accuracy, text, finished, tokens, <each score>     answer
    loops, calls, checks, cost                cost is that of `control.offline`, of calls and checks
    prompt_loops, prompt_cost
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import polars as pl
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from loopscope.control.act import Acted, act_on
from loopscope.control.answers import STOPS, accuracy, scored
from loopscope.control.generating import generate, tokenizer_of
from loopscope.control.offline import Costs
from loopscope.control.policy import Policy
from loopscope.errors import LoopscopeError
from loopscope.measuring.layout import Layout, Question, collate, plan_batches
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.reading import Reading, readout_of
from loopscope.measuring.rerun import Named, Sources, request_of
from loopscope.measuring.settings import BatchPolicy
from loopscope.models.batch import Batch
from loopscope.models.in_memory import borrowed
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk, read
from loopscope.store.run import StoredRun
from loopscope.tasks.encoding import LoadedTask

Tier = Literal["offline", "rerun", "generate"]

NO_COSTS = Costs()
MORE_TOKENS = 32
"""A generated answer may be this much longer than the longest reference."""


@torch.no_grad()
def rerun(
    model: LoopedModel,
    task: LoadedTask,
    policies: Sequence[Policy],
    *,
    loops: int,
    costs: Costs = NO_COSTS,
    tokenizer: Any = None,
    batch_size: str | int = "auto",
) -> pl.DataFrame:
    """Every policy on every question of a task, teacher-forced.

    Args:
        model: a looped model that keeps keys and values.
        task: what `load_task` gives.
        policies: their names tell the rows apart.
        loops: the most that a policy may take.
        costs: what loops and checks cost.
        tokenizer: the model's own when left out.
        batch_size: "auto" or a number of questions; it changes no number beyond rounding.
    """
    if not policies:
        raise LoopscopeError("give at least one policy")
    _distinct(policies)
    found = []
    for batch in _batches(model, task, tokenizer, batch_size):
        layout = Layout.of(batch, collate(batch).sequences, model.device)
        for policy in policies:
            acted = act_on(model, layout.batch, policy, loops)
            layout = layout.given(acted.context)
            reading = readout_of(model, torch.float32).read(acted.state_BSD, layout)
            (loops_B, before_B), (calls_B, calls_before_B), (checks_B, checks_before_B) = (
                _means(values, layout) for values in (acted.loops_BS, acted.calls_BS, acted.checks_BS)
            )
            columns = {
                "utility": reading.utility_B,
                "accuracy": _right(model, acted, layout, reading),
                "loops": loops_B,
                "calls": calls_B,
                "checks": checks_B,
                "cost": costs(calls_B, checks_B),
                "prompt_loops": before_B,
                "prompt_cost": costs(calls_before_B, checks_before_B),
            }
            frame = pl.DataFrame({name: column.cpu().numpy() for name, column in columns.items()})
            rows = [(policy.name, question.row, question.example.id) for question in batch]
            keys = pl.DataFrame(rows, schema=["policy", "row", "example_id"], orient="row")
            found.append(pl.concat([keys, frame], how="horizontal"))
    return pl.concat(found).sort("policy", "row", maintain_order=True)


def answer(
    model: LoopedModel,
    task: LoadedTask,
    policies: Sequence[Policy | None],
    *,
    loops: int,
    max_new_tokens: int,
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
                stop=STOPS[task.name],
                tokenizer=words,
                source_rows=[question.example.source_row for question in batch],
            )
            assert made.texts is not None
            scores = scored(task.name, made.texts, [question.text.texts[0] for question in batch])
            for place, (question, score) in enumerate(zip(batch, scores, strict=True)):
                counts = {"loops": made.loops[place], "calls": made.calls[place], "checks": made.checks[place]}
                means = {name: sum(values) / max(len(values), 1) for name, values in counts.items()}
                found.append(
                    {
                        "policy": f"full depth {loops}" if policy is None else policy.name,
                        "row": question.row,
                        "example_id": question.example.id,
                        "accuracy": float(accuracy(score)),
                        **means,
                        "cost": float(costs(means["calls"], means["checks"])),
                        "prompt_loops": made.prompt_loops[place],
                        "tokens": len(made.tokens[place]),
                        "finished": made.finished[place],
                        "text": made.texts[place],
                        **score,
                    }
                )
    return pl.DataFrame(found, infer_schema_length=None).sort("policy", "row", maintain_order=True)


def acted(
    run: StoredRun,
    task: str,
    split: str,
    policies: Sequence[Policy],
    tier: Tier,
    *,
    loops: int,
    ids: Sequence[str] | None = None,
    costs: Costs = NO_COSTS,
    named: Named = Named(),  # noqa: B008
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
        costs: what loops and checks cost.
        named: what the user names of the run's sources.
    """
    sources = Sources.of(run, named)
    sources.check()
    planned = next((t for t in sources.prepared.tasks if (t.task.name, t.task.split) == (task, split)), None)
    if planned is None:
        raise LoopscopeError(f"{run.path} has no task {task} of the split {split}")
    rows = tuple(row for row in planned.rows if ids is None or row.id in set(ids))
    chosen = dataclasses.replace(planned.task, rows=rows)
    words = sources.tokenizer
    if tier == "rerun":
        return rerun(sources.model, chosen, policies, loops=loops, costs=costs, tokenizer=words)
    tokens = MORE_TOKENS + max(len(example.sequences[0].positions) for example in chosen.encode(words))
    return answer(sources.model, chosen, policies, loops=loops, max_new_tokens=tokens, costs=costs, tokenizer=words)


def costs_of_run(run: StoredRun, named: Named) -> Costs:
    """What loops and readouts of a run's model cost."""
    with borrowed(named.model):
        return costs_of(request_of(run, named).model.load())


@torch.no_grad()
def costs_of(model: LoopedModel) -> Costs:
    """Counted over one token, in multiplications: what `embed` and `readout` take, over what `step` takes."""
    batch = Batch.from_rows([[0]]).to(model.device)
    embedded, walk = _counted(lambda: Walk.of(model, batch))
    stepped, _ = _counted(walk.advance)
    position = torch.zeros((1, 2), dtype=torch.int64, device=model.device)
    read, _ = _counted(lambda: walk.read(position))
    return Costs((embedded + read) / stepped, read / stepped) if stepped else Costs()


def _counted(call: Callable[[], Any]) -> tuple[int, Any]:
    with FlopCounterMode(display=False) as counter:
        made = call()
    return counter.get_total_flops(), made


def _batches(model: LoopedModel, task: LoadedTask, tokenizer: Any, batch_size: str | int) -> Iterator[list[Question]]:
    words = None if all(row.ids is not None for row in task.rows) else tokenizer_of(model, tokenizer)
    encoder = QuestionEncoder(words, getattr(model, "max_positions", None), "error")
    questions = encoder.questions(task, task.rows, 0)
    yield from plan_batches(questions, BatchPolicy.parse(batch_size).on(model.device.type))


def _right(model: LoopedModel, acted: Acted, layout: Layout, reading: Reading) -> Tensor:
    """The share of right tokens of every question; with options, whether the right one scores best."""
    if layout.options is not None:
        best_B = layout.options.gathered(reading.scores_R, -torch.inf).argmax(dim=1)
        return (best_B == layout.options.target).double()
    z_NV = read(model, acted.state_BSD, layout.positions_N2, None, acted.context)
    return layout.question_mean(layout.sequence_mean((z_NV.argmax(dim=-1) == layout.targets_N).double()))


def _means(values_RS: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Means over positions that predict, and over the others, of every question."""
    row_N, place_N = layout.positions_N2.unbind(1)
    before_RS = layout.batch.attention_mask.clone()
    before_RS[row_N, place_N] = False
    # The last token predicts nothing and its loops serve nobody.
    last_R = layout.batch.attention_mask.sum(1) - 1
    before_RS[torch.arange(len(last_R), device=last_R.device), last_R] = False
    before_R = (values_RS * before_RS).sum(1).double() / before_RS.sum(1).clamp(min=1)
    scored_N = values_RS[row_N, place_N].double()
    return layout.question_mean(layout.sequence_mean(scored_N)), layout.question_mean(before_R)


def _distinct(policies: Sequence[Policy]) -> None:
    names = [policy.name for policy in policies]
    if len(set(names)) != len(names):
        raise LoopscopeError("give each policy a name of its own")
