"""The table of docs/control.md: a dozen policies acting on looped models, teacher-forced and in generation.

    python docs/figures/control_tiers.py MODEL… --task arithmetic --questions 12 --answers 8

For every policy: mean loops; utility minus that of the trained depth, once over a trace, where every token's keys and
values are at full depth, and once with those that the policy leaves behind; and the share of right answers in
generation. Questions are those of the test split. Thresholds are written here and were not chosen on these questions.
Several models are pooled; 95% intervals resample questions, each with all its models.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence

import numpy as np
import polars as pl

import loopscope as ls
from loopscope.control.answers import SCORES
from loopscope.control.offline import follow, score
from loopscope.control.policy import Policy
from loopscope.control.rerun import answer, rerun
from loopscope.control.rules import ThresholdRule, anchored_steps, exit_rule, fixed_depth, fixed_scale, substeps
from loopscope.control.trace import Trace
from loopscope.stats import Bootstrap, Clusters, Estimate


def policies(trained: int) -> list[tuple[Policy, int]]:
    """The policies, and the most loops that each may take; the trained depth comes first."""
    within: list[Policy] = [
        fixed_depth(trained),
        fixed_depth(trained - 1),
        exit_rule("top-1 probability", 0.9, earliest=2),
        exit_rule("entropy", 0.3, earliest=2),
        exit_rule("KL", 0.05),
        exit_rule("argmax stability", 1, earliest=2),
        exit_rule("latent difference", 0.25),
        exit_rule("Ouro gate", 0.5, earliest=2),
        fixed_scale(0.75, first=trained),
        substeps(2),
        anchored_steps(2),
    ]
    beyond: list[Policy] = [fixed_depth(trained + 1), fixed_scale(0.25, first=trained + 1)]
    return [(policy, trained) for policy in within] + [(policy, trained + 1) for policy in beyond]


def traced(model: ls.LoopedModel, task: str, questions: int) -> Trace:
    """What the model would say after every loop."""
    with tempfile.TemporaryDirectory() as folder:
        run = ls.measure(
            model, f"{task}:test", limit=questions, transitions=[model.trained_depth],
            depths=f"1-{model.trained_depth + 1}", trace=True, output=f"{folder}/run",
        )  # fmt: skip
        return Trace.of(run.trace.collect())


def measured(model: ls.LoopedModel, task: str, questions: int, answers: int) -> pl.DataFrame:
    """One row per policy and question."""
    chosen = policies(model.trained_depth)
    loaded = ls.load_task(f"{task}:test", limit=questions)
    few = ls.load_task(f"{task}:test", limit=answers) if answers and task in SCORES else None
    found, trace = [], traced(model, task, questions)
    for loops in sorted({cap for _, cap in chosen}):
        own = [policy for policy, cap in chosen if cap == loops]
        latest = rerun(model, loaded, own, loops=loops)
        # Where nothing stops by a rule, all positions stop alike and the trace has nothing else to say.
        full = pl.concat(
            [
                pl.DataFrame({"full": score(follow(policy, trace, last=loops), trace).utility_Q})
                if isinstance(policy, ThresholdRule)
                else latest.filter(pl.col("policy") == policy.name).select(full="utility")
                for policy in sorted(own, key=lambda policy: policy.name)
            ]
        )
        frame = pl.concat([latest, full], how="horizontal")
        if few is not None:
            longest = max(len(example.sequences[0].positions) for example in few.encode(_tokenizer(model)))
            right = answer(model, few, own, loops=loops, max_new_tokens=longest + 8)
            frame = frame.join(
                right.select("policy", "row", right="accuracy", decode_loops="loops"), on=["policy", "row"], how="left"
            )
        found.append(frame)
    order = {policy.name: place for place, (policy, _) in enumerate(chosen)}
    return pl.concat(found).sort(pl.col("policy").replace_strict(order), "row")


def _tokenizer(model: ls.LoopedModel) -> object:
    from loopscope.control.generating import tokenizer_of

    return tokenizer_of(model)


def table(frames: Sequence[pl.DataFrame], names: Sequence[str]) -> str:
    """Markdown."""
    frame = pl.concat([found.with_columns(model=pl.lit(index)) for index, found in enumerate(frames)])
    base = frame.filter(pl.col("policy") == names[0]).select("model", "row", at_full="full", at="utility")
    lines = [
        "| policy | loops | utility − trained depth, full cache | the same, its own cache | right answers |",
        "|---|---|---|---|---|",
    ]
    for name in names:
        own = frame.filter(pl.col("policy") == name).join(base, on=["model", "row"]).sort("row", "model")
        clusters = Clusters.of(own["row"].to_numpy())
        estimates = Bootstrap().estimate(
            {
                "full": clusters.mean((own["full"] - own["at_full"]).to_numpy()),
                "latest": clusters.mean((own["utility"] - own["at"]).to_numpy()),
            }
        )
        cells = [
            f"{name}",
            f"{own['loops'].mean():.2f}",
            *(_shown(estimates[kind], 1e3) for kind in ("full", "latest")),
        ]
        right = own.drop_nulls("right") if "right" in own.columns else own.clear()
        if right.height:
            share = Clusters.of(right["row"].to_numpy()).mean(right["right"].to_numpy())
            cells.append(_shown(Bootstrap().estimate({"right": share})["right"], 100, signed=False) + " %")
        else:
            cells.append("")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(estimate: Estimate, factor: float, *, signed: bool = True) -> str:
    sign = "+" if signed else ""
    value = np.nan if estimate.value is None else estimate.value * factor
    if estimate.interval is None:
        return f"{value:{sign}.1f}"
    return (
        f"{value:{sign}.1f} [{estimate.interval.low * factor:{sign}.1f}, {estimate.interval.high * factor:{sign}.1f}]"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--task", default="arithmetic")
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--answers", type=int, default=16)
    parser.add_argument("--keep", help="Parquet file for the rows; given such files as MODEL, only their table is made")
    given = parser.parse_args()
    frames = []
    for spec in given.models:
        if spec.endswith(".parquet"):
            frames.append(pl.read_parquet(spec))
        else:
            model = ls.load_model(spec, dtype="float32")
            frames.append(measured(model, given.task, given.questions, given.answers))
    if given.keep:
        pl.concat(frames).write_parquet(given.keep)
    print(table(frames, frames[0]["policy"].unique(maintain_order=True).to_list()))


if __name__ == "__main__":
    main()
