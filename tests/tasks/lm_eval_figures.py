"""Writes lm_eval_figures.json: what lm-evaluation-harness makes of the option tasks on the tiny Llama model.

Run by hand, in an environment of its own that has lm_eval, transformers and torch:

    python tests/tasks/lm_eval_figures.py --data-dir DATA --tokenizer FOLDER

That program's own task files give wording, clean-up and the split into context and continuation, and its own
code the log-likelihoods; only where the rows come from is changed, from the hub to local files. Kept are numbers
(source rows, summed log-likelihoods, token counts), no text.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import lm_eval
import tiny_llama
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

HERE = Path(__file__).parent
PER_TASK = 32
TASKS = {
    # ours: (that program's task file, split, local file, a change that gives the hub's field names)
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation", "hellaswag_val", lambda row: row),
    "arc_challenge": ("arc/arc_challenge.yaml", "test", "arc_challenge_test", lambda row: row),
    "piqa": ("piqa/piqa.yaml", "validation", "piqa_val", lambda row: row),
    "boolq": (
        "super_glue/boolq/default.yaml",
        "validation",
        "boolq_val",
        lambda row: {"passage": row["passage"], "question": row["question"], "label": int(row["answer"])},
    ),
    "commonsense_qa": ("commonsense_qa/default.yaml", "validation", "commonsenseqa_val", lambda row: row),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        figures = run(Path(name), arguments.data_dir, arguments.tokenizer)
    (HERE / "lm_eval_figures.json").write_text(json.dumps(figures, indent=None) + "\n")


def run(work: Path, data_dir: Path, tokenizer: Path) -> dict:
    checkpoint = work / "checkpoint"
    tiny_llama.write_checkpoint(checkpoint)
    for file in tokenizer.iterdir():
        shutil.copy(file, checkpoint / file.name)
    model = HFLM(pretrained=str(checkpoint), dtype="float32", device="cpu", batch_size=1)
    (work / "tasks").mkdir()
    chosen = {}
    for task, (own_file, split, local, change) in TASKS.items():
        with gzip.open(data_dir / f"{local}.jsonl.gz", "rt", encoding="utf-8") as file:
            rows = [change(json.loads(line)) for line in file]
        data = work / f"{task}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        chosen[task] = sorted({*range(6), *range(6, len(rows), len(rows) // PER_TASK), *unusual(rows)})
        own = Path(lm_eval.__file__).parent / "tasks" / own_file
        (work / "tasks" / f"{task}.yaml").write_text(
            f"include: {own}\ntask: local_{task}\ndataset_path: json\ndataset_name: null\ntraining_split: null\n"
            f"validation_split: {split if split == 'validation' else 'null'}\n"
            f"dataset_kwargs:\n  data_files:\n    {split}: {data}\n"
        )
    manager = TaskManager(include_path=str(work / "tasks"), include_defaults=False)
    results = lm_eval.simple_evaluate(
        model=model,
        tasks=[f"local_{task}" for task in TASKS],
        samples={f"local_{task}": rows for task, rows in chosen.items()},
        num_fewshot=0,
        task_manager=manager,
        bootstrap_iters=0,
    )
    return {
        "program": f"lm_eval {version('lm_eval')}",
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers", "datasets")},
        "model": "tests/tasks/tiny_llama.py",
        "tasks": {task: figures(results["samples"][f"local_{task}"], model) for task in TASKS},
    }


def unusual(rows: list[dict]) -> list[int]:
    """ARC's few questions with other than four options."""
    counts = [len(row["choices"]["text"]) if "choices" in row else 4 for row in rows]
    usual = max(set(counts), key=counts.count)
    return [index for index, count in enumerate(counts) if count != usual]


def figures(samples: list[dict], model: HFLM) -> dict:
    samples = sorted(samples, key=lambda sample: sample["doc_id"])
    pairs = [[tuple(pair) for pair in sample["arguments"]] for sample in samples]
    lengths = [[model._encode_pair(*pair) for pair in question] for question in pairs]
    return {
        "rows": [sample["doc_id"] for sample in samples],
        "targets": [
            int(sample["target"]) if str(sample["target"]).isdecimal() else "ABCDE".index(sample["target"])
            for sample in samples
        ],
        "log_likelihoods": [[float(answer[0][0]) for answer in sample["resps"]] for sample in samples],
        "context_tokens": [[len(context) for context, _ in question] for question in lengths],
        "continuation_tokens": [[len(continuation) for _, continuation in question] for question in lengths],
    }


if __name__ == "__main__":
    main()
