"""Passes over multiple-choice tasks: what `share_context=` saves, and peak memory against the number of questions.

`shared` counts the tokens that a model runs over whole tasks with and without sharing, in the batches that a pass on a
GPU would make. On a GPU it races passes of Ouro-1.4B's size at level grid over the first 1,000 questions of HellaSwag;
elsewhere it times passes of a small random Ouro at level quick over the first questions in processor seconds. Beside so
small a model the readout of a vocabulary of 49,152 weighs more than beside a real one. `questions` measures
1,000 and 10,042 questions of HellaSwag with a tiny model, a process each:
`python -m loopscope.bench.long_passes TASK COUNT [DATA_DIR]`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loopscope.bench.clock import Clock, Measured, in_fresh_process, peak_mib
from loopscope.bench.row import Reference, Row, Setting, at_least, at_most
from loopscope.bench.sizes import OURO_SHAPE
from loopscope.bench.whole_pass import OURO, PassRequest, pass_figures, set_up
from loopscope.measuring.layout import Question, padded_tokens, plan_batches
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.settings import BatchPolicy
from loopscope.models.registry import EMBEDDED
from loopscope.models.tokenizer import load_tokenizer
from loopscope.tasks.load import load_task

TASKS = ("hellaswag", "arc_challenge", "piqa", "boolq", "commonsense_qa")
QUICK_TASK = "arithmetic-mc"
QUESTIONS, QUICK_QUESTIONS, GPU_QUESTIONS = 200, 4, 1000
COUNTS, QUICK_COUNTS = (1000, 10042), (2, 8)
UNIT = 64
APART = "every option with its whole context"
GAIN = 1.6
"""In questions a second, from sharing."""
GROWTH = 1.1
"""How much more memory ten times the questions may take: their texts stay."""
SMALL = OURO_SHAPE | {"architectures": ["OuroForCausalLM"], "model_type": "ouro", "torch_dtype": "float32"}
SMALL |= {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "max_position_embeddings": 4096}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
TINY = SMALL | {"vocab_size": 1024, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}


def shared_rows(setting: Setting) -> list[Row]:
    """A row for each task; on a GPU one."""
    if setting.on_gpu and not setting.quick:
        return [_shared_on_gpu(setting)]
    return [_shared(task, setting) for task in ((QUICK_TASK,) if setting.quick else TASKS)]


def _shared(task: str, setting: Setting) -> Row:
    tokenizer = setting.tokenizer or str(EMBEDDED / "toy-ouro")
    limit = QUICK_QUESTIONS if setting.quick else QUESTIONS
    config = TINY if setting.quick else SMALL
    figures: dict[str, float] = {}
    seconds, utilities = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        for share, name in ((False, "apart"), (True, "shared")):
            valid, padded = _tokens(task, setting, tokenizer, share=share)
            figures |= {f"tokens_{name}": float(valid), f"padded_tokens_{name}": float(padded)}
            began = time.process_time()
            run = _measure(config, task, limit, setting.data_dir, tokenizer, Path(scratch) / name, share_context=share)
            seconds[name] = Measured.of([time.process_time() - began])
            utilities[name] = run.depths["utility"]
    figures["largest_difference_utility"] = float((utilities["shared"] - utilities["apart"]).abs().max())
    return Row(
        f"shared:{task}",
        "Processor seconds of a quick pass that runs what a question's options share once",
        {"questions": limit},
        "s",
        seconds["shared"],
        (Reference(APART, seconds["apart"]),),
        figures=figures,
    )


def _shared_on_gpu(setting: Setting) -> Row:
    assert setting.tokenizer is not None
    task, clock = TASKS[0], Clock(setting.device, host=True)
    wanted = PassRequest(OURO, str(setting.device), setting.tokenizer, task, setting.data_dir, GPU_QUESTIONS)
    with tempfile.TemporaryDirectory() as scratch:
        apart, shared = (
            set_up(dataclasses.replace(wanted, share=share), Path(scratch) / str(share)) for share in (False, True)
        )
        raced = clock.race({"apart": apart.run_pass, "shared": shared.run_pass}, setting.sizes.slow_repeats)
        bare = clock.race({"apart": apart.run_bare, "shared": shared.run_bare}, setting.sizes.slow_repeats)
        stages = {"apart": pass_figures(apart, clock), "shared": pass_figures(shared, clock)}
    ours, reference = raced["shared"], Reference(APART, raced["apart"])
    speed = reference.ratio(ours)
    goal = at_least(f"at least {GAIN} times the questions a second", GAIN, speed, judged=True, against=APART)
    figures = {f"bare_{name}": seconds.value for name, seconds in bare.items()}
    figures |= {f"questions_per_s_{name}": GPU_QUESTIONS / seconds.value for name, seconds in raced.items()}
    figures |= {"tokens_apart": float(apart.size["tokens"]), "tokens_shared": float(shared.size["tokens"])}
    figures |= {f"{part}_{name}": value for name, parts in stages.items() for part, value in parts.items()}
    what = "A whole pass, update 4→5, level grid, that runs what a question's options share once"
    return Row(f"shared:{task}", what, shared.size, "s", ours, (reference,), (goal,), figures)


def _tokens(task: str, setting: Setting, tokenizer: str, *, share: bool) -> tuple[int, int]:
    """Valid and padded tokens of one step over the whole task, or over the first questions for a test."""
    loaded = load_task(task, data_dir=setting.data_dir)
    encoder = QuestionEncoder(load_tokenizer(tokenizer), None, "error", share=share)
    questions = encoder.questions(loaded.without_rows(), loaded.rows[:UNIT] if setting.quick else loaded.rows, 0)
    policy = BatchPolicy.parse("auto").on("cuda")
    units = [questions[start : start + UNIT] for start in range(0, len(questions), UNIT)]
    padded = sum(padded_tokens(batch) for unit in units for batch in plan_batches(unit, policy))
    return sum(map(_valid, questions)), padded


def _valid(question: Question) -> int:
    lengths = [len(sequence.token_ids) for sequence in question.example.sequences]
    return sum(lengths) - question.shared * (len(lengths) - 1)


def questions_rows(setting: Setting) -> list[Row]:
    """One row."""
    task, counts = (QUICK_TASK, QUICK_COUNTS) if setting.quick else ("hellaswag", COUNTS)
    folder = () if setting.data_dir is None else (setting.data_dir,)
    few, many = (in_fresh_process("long_passes", task, count, *folder) for count in counts)
    growth = many["peak_mib"] / few["peak_mib"]
    text = f"at most {GROWTH:g} times the peak with {counts[0]:,} questions"
    return [
        Row(
            "questions",
            f"Peak resident memory of a quick pass over {task} with a tiny model",
            {"questions": counts[1]},
            "MiB",
            Measured.of([many["peak_mib"]]),
            (Reference(f"{counts[0]:,} questions", Measured.of([few["peak_mib"]])),),
            (at_most(text, GROWTH, growth, judged=not setting.quick),),
            {name: value for name, value in many.items() if name != "peak_mib"},
        )
    ]


def _measure(
    config: dict[str, Any], task: str, limit: int, data_dir: str | None, tokenizer: str, folder: Path, **rest: Any
) -> Any:
    """A pass at level quick with random weights."""
    from loopscope.api import measure

    model = folder / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(config))
    return measure(
        str(model),
        [task],
        output=folder / "run",
        transitions=[4],
        level="quick",
        limit=limit,
        data_dir=data_dir,
        random_weights=True,
        tokenizer=tokenizer,
        device="cpu",
        **rest,
    )


def main() -> int:
    """Measures a task with a tiny model; one JSON object on stdout."""
    task, count, *data_dir = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        run = _measure(TINY, task, int(count), data_dir[0] if data_dir else None, "toy-ouro", Path(scratch))
        seconds = time.monotonic() - began
        written = sum(file.stat().st_size for file in run.path.rglob("*.parquet")) / 2**20
        rows = sum(shard.rows for record in run.unit_records.values() for shard in record.shards)
    print(json.dumps({"peak_mib": peak_mib(), "seconds": seconds, "rows_written": rows, "mib_written": written}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
