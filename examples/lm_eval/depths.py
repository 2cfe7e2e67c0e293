"""Accuracy of a task at every depth: lm-evaluation-harness with loopscope as its model, next to loopscope's own run.

    python examples/lm_eval/depths.py
    python examples/lm_eval/depths.py --model toy-huginn --task examples/lm_eval/next_number.yaml --deepest 8

The harness is called once for each depth, as `loopscope lm-eval --model_args pretrained=MODEL,depth=R --tasks TASK`;
loopscope measures all depths in one run and gives its stored scores to the harness's own metrics. In bfloat16 a near
tie may fall either way, for the two batch differently; with `--dtype float32` they agree. Give the command from the
repository's root, where the task finds its file.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import loopscope as ls


def harness(model: str, task: str, depth: int, dtype: str | None, folder: Path) -> dict[str, float]:
    """The metrics that the harness itself writes at one depth."""
    output = folder / f"depth-{depth}"
    arguments = f"pretrained={model},depth={depth}" + (f",dtype={dtype}" if dtype else "")
    call = ["lm-eval", "--model_args", arguments, "--tasks", task, "--output_path", str(output)]
    done = subprocess.run([sys.executable, "-m", "loopscope", *call], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    (results,) = json.loads(next(output.rglob("results_*.json")).read_text())["results"].values()
    named = {name.partition(",")[0]: value for name, value in results.items() if isinstance(value, float)}
    return {name: value for name, value in named.items() if not name.endswith("_stderr")}


def main() -> None:
    """Print one line for each depth and metric."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="toy-ouro")
    parser.add_argument("--task", default="examples/lm_eval/next_number.yaml")
    parser.add_argument("--deepest", type=int, default=8)
    parser.add_argument("--dtype", help="of weights and states; by default the model's own")
    given = parser.parse_args()
    depths = range(1, given.deepest + 1)
    with tempfile.TemporaryDirectory() as temporary:
        run = ls.measure(
            given.model,
            [f"lm_eval:{given.task}"],
            depths=list(depths),
            level="quick",
            dtype=given.dtype,
            output=f"{temporary}/run",
            progress="none",
        )
        scores = ls.lm_eval_scores(run, f"lm_eval:{given.task}")
        own = {(depth, metric): value for _, depth, _, metric, value in scores.rows()}
        print("| loops | metric | lm-eval | loopscope |\n|---|---|---|---|")
        for depth in depths:
            for metric, value in harness(given.model, given.task, depth, given.dtype, Path(temporary)).items():
                print(f"| {depth} | {metric} | {value:.4f} | {own[depth, metric]:.4f} |", flush=True)


if __name__ == "__main__":
    main()
