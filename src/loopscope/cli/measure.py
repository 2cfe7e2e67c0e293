"""`loopscope measure`: its flags, and the call of `loopscope.measure`, which reads text as flags are written."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

from loopscope.cli.flags import ConfigFlag, Device, ModelArgs, flag


def measure(
    model: Annotated[
        str,
        flag(
            "--model",
            "Name, hub name, folder, `mine.py:build`; of several: a,b or 'ckpt/step-*'.",
        ),
    ],
    tasks: Annotated[str, flag("--tasks", "Tasks, comma separated; see `loopscope tasks`.")],
    output: Annotated[str, flag("--output", "Run directory, or folder of several; the same command resumes.")],
    model_args: ModelArgs = "",
    transitions: Annotated[str, flag("--transitions", "Each t of an update t → t+1, e.g. 4 or 1-4.")] = "",
    depths: Annotated[str, flag("--depths", "Depths whose utility is stored, e.g. 1-8,12.")] = "",
    level: Annotated[str, flag("--level", "How much to compute: quick, grid or full.")] = "grid",
    tokens: Annotated[bool, flag("--tokens", "Store a row for every reference token.")] = False,
    paths: Annotated[bool, flag("--paths", "Store the 257 nodes of the FP64 analysis (level full).")] = False,
    certify: Annotated[bool, flag("--certify", "Enclose every update's numbers, rounding included (affine).")] = False,
    trace: Annotated[bool, flag("--trace", "Store a row for every reference position after every loop.")] = False,
    lens: Annotated[int | None, flag("--lens", "Keep this many of the likeliest tokens in these rows.")] = None,
    scales_to: Annotated[float | None, flag("--scales-to", "Also longer steps, at scales up to this, e.g. 2.")] = None,
    every_scale: Annotated[
        bool, flag("--every-scale", "Evaluate the grid at every scale; by default interpolated where that is as good.")
    ] = False,
    protocol: Annotated[
        str, flag("--protocol", "loopscope, or paper: whatever is left out is as in the paper.")
    ] = "loopscope",
    initial_state: Annotated[
        str | None, flag("--initial-state", "How H_0 is drawn, if it is: question, paper or official.")
    ] = None,
    initial_seed: Annotated[int | None, flag("--initial-seed", "What H_0 is drawn from, if it is drawn.")] = None,
    limit: Annotated[str, flag("--limit", "At most so many questions: 100, or gsm8k=100,piqa=50.")] = "",
    ids: Annotated[str, flag("--ids", "Only these source rows, e.g. 0,5,10-12.")] = "",
    data_dir: Annotated[str | None, flag("--data-dir", "Folder with local copies of the benchmarks.")] = None,
    template: Annotated[str | None, flag("--template", "Template file instead of the tasks' own.")] = None,
    num_fewshot: Annotated[int | None, flag("--num-fewshot", "Examples before each question.")] = None,
    fewshot_split: Annotated[
        str | None, flag("--fewshot-split", "Split or data file of the examples; by default the train rows.")
    ] = None,
    fewshot_seed: Annotated[int, flag("--fewshot-seed", "What the examples are drawn from.")] = 1234,
    apply_chat_template: Annotated[
        bool, flag("--apply-chat-template", "Ask in the tokenizer's own chat template.")
    ] = False,
    batch_size: Annotated[
        str | None, flag("--batch-size", "Questions in a batch, `auto` or `paper`; by default `auto`.")
    ] = None,
    device: Device = "auto",
    dtype: Annotated[
        str | None, flag("--dtype", "Dtype of weights and states; by default bfloat16 if published, else as stored.")
    ] = None,
    readout_dtype: Annotated[
        str | None, flag("--readout-dtype", "Arithmetic of the readout; by default float32.")
    ] = None,
    long: Annotated[str, flag("--long", "Sequences that do not fit: error, skip or truncate-left.")] = "error",
    share_context: Annotated[bool, flag("--share-context", "Run what a question's options share once.")] = False,
    unit_size: Annotated[int, flag("--unit-size", "Questions stored at a time.")] = 64,
    exit_threshold: Annotated[float | None, flag("--exit-threshold", "Threshold of the exit gate.")] = None,
    random_weights: Annotated[bool, flag("--random-weights", "No checkpoint: random weights, marked as such.")] = False,
    seed: Annotated[int, flag("--seed", "Seed of the random weights.")] = 0,
    tokenizer: Annotated[
        str | None, flag("--tokenizer", "Tokenizer of this model, folder or file (.json, .model).")
    ] = None,
    revision: Annotated[str | None, flag("--revision", "Revision of a hub model, or several: main,step1000.")] = None,
    training_step: Annotated[
        str | None, flag("--training-step", "Step of training, one for each model, where names do not tell it.")
    ] = None,
    engine: Annotated[str, flag("--engine", "local or ray.")] = "local",
    workers: Annotated[int | None, flag("--workers", "Model replicas of the Ray engine.")] = None,
    address: Annotated[str | None, flag("--address", "Address of an existing Ray cluster.")] = None,
    progress: Annotated[str, flag("--progress", "auto, bar, plain or none.")] = "auto",
    plan: Annotated[bool, flag("--plan", "Say what it would take on this machine, and stop.")] = False,
    plan_seconds: Annotated[float, flag("--plan-seconds", "How long batches are timed for that.")] = 5.0,
    config: ConfigFlag = None,
) -> None:
    """Measure tasks with a looped model, into a run directory."""
    given = {name: value for name, value in locals().items() if name not in _APART}
    from loopscope.api import measure as run_measure
    from loopscope.api import plan as estimate
    from loopscope.measuring.launch import this_launch

    if plan:
        print(estimate(**given, seconds=plan_seconds))
        return
    given |= {
        "command_line": ["loopscope", *sys.argv[1:]],
        "notify": lambda line: print(f"loopscope: {line}", file=sys.stderr),
        "progress_style": progress,
    }
    run = run_measure(**given)
    if this_launch().rank:
        return
    where = shlex.quote(output)
    if isinstance(run, list):
        print(f"{len(run)} runs in {where}. Next: loopscope tables {where} --name training | loopscope report {where}")
    elif run.manifest.transitions:
        count = run.stored_rows("questions")
        print(f"{count} updates in {where}. Next: loopscope tables {where} | loopscope report {where}")
    else:
        count = run.stored_rows("depths")
        print(f"{count} utilities in {where}. Next: loopscope figures {where} --name depth-curves")


_APART = ("config", "progress", "plan", "plan_seconds")
"""What is no argument of `loopscope.measure` under its own name."""
