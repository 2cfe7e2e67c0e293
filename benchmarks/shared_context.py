"""What `--share-context` saves: tokens that a model runs with and without it, and the time of a pass on this machine.

    python benchmarks/shared_context.py --data-dir DIR --tokenizer DIR [--questions 200] [--tasks hellaswag,boolq]

Tokens are counted over whole tasks with the tokenizer given, in the batches that a pass would make. The pass is that of
a small random Ouro at level quick over the first questions of each task, in processor seconds, its loops and all of it:
beside so small a model the readout of a vocabulary of 49,152 weighs more than beside a real one. The utilities of both
runs are compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from loopscope.api import measure
from loopscope.measuring.batches import Question, padded_tokens, plan_batches
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.settings import BatchPolicy
from loopscope.models.families.ouro import Ouro
from loopscope.models.tokenizer import load_tokenizer
from loopscope.store import StoredRun
from loopscope.tasks.load import load_task

TASKS = "hellaswag,arc_challenge,piqa,boolq,commonsense_qa"
UNIT = 64
CONFIG = {
    "architectures": ["OuroForCausalLM"],
    "model_type": "ouro",
    "vocab_size": 49152,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "total_ut_steps": 4,
    "early_exit_threshold": 1.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "torch_dtype": "float32",
}


def tokens(task: str, data_dir: str, tokenizer: str, *, share: bool) -> tuple[int, int]:
    """Valid and padded tokens of one step over the whole task."""
    loaded = load_task(task, data_dir=data_dir)
    encoder = QuestionEncoder(load_tokenizer(tokenizer), None, "error", share=share)
    questions = encoder.questions(loaded.without_rows(), loaded.rows, 0)
    policy = BatchPolicy.parse("auto").on("cuda")
    units = [questions[start : start + UNIT] for start in range(0, len(questions), UNIT)]
    padded = sum(padded_tokens(batch) for unit in units for batch in plan_batches(unit, policy))
    return sum(map(_valid, questions)), padded


def _valid(question: Question) -> int:
    lengths = [len(sequence.token_ids) for sequence in question.example.sequences]
    return sum(lengths) - question.shared * (len(lengths) - 1)


class Timed(NamedTuple):
    """A pass, and the processor seconds of its loops and of all of it."""

    run: StoredRun
    loops: float
    whole: float


def timed(model: Path, task: str, data_dir: str, output: Path, questions: int, *, share: bool) -> Timed:
    """One pass."""
    loops, step = [0.0], Ouro.step

    def clocked(self: Ouro, *rest: Any) -> Any:
        began = time.process_time()
        found = step(self, *rest)
        loops[0] += time.process_time() - began
        return found

    began = time.process_time()
    with patch.object(Ouro, "step", clocked):
        run = measure(
            str(model),
            [task],
            output=output,
            transitions=[4],
            level="quick",
            limit=questions,
            data_dir=data_dir,
            random_weights=True,
            device="cpu",
            share_context=share,
        )
    return Timed(run, loops[0], time.process_time() - began)


def main() -> None:
    """Print one line a task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--questions", type=int, default=200)
    args = parser.parse_args()
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {version('torch')}")
    print("task             tokens → shared          padded → shared           loops, s     pass, s    max |ΔU|")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "small-ouro"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIG))
        shutil.copy(Path(args.tokenizer) / "tokenizer.json", model)
        for task in args.tasks.split(","):
            valid, padded = zip(
                *(tokens(task, args.data_dir, args.tokenizer, share=share) for share in (False, True)), strict=True
            )
            plain, shared = (
                timed(model, task, args.data_dir, Path(folder) / f"{task}-{share}", args.questions, share=share)
                for share in (False, True)
            )
            gap = (shared.run.depths["utility"] - plain.run.depths["utility"]).abs().max()
            print(
                f"{task:15}{_saved(*valid)}{_saved(*padded)}{plain.loops:7.1f} {shared.loops:5.1f}"
                f"{plain.whole:7.1f} {shared.whole:5.1f}{gap:10.1e}",
                flush=True,
            )


def _saved(plain: int, shared: int) -> str:
    return f"{plain:9} {shared:8} {shared / plain - 1:7.1%}"


if __name__ == "__main__":
    main()
