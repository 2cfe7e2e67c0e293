"""Generated stand-ins for the paper's benchmarks: as many questions, about as long, of words without meaning.

A rehearsal with random weights needs lengths, not texts. Every word is one token of the embedded tokenizer, and
lengths are log-normal with the means and spreads of `stand_ins.toml`. Files have the published layout and names, so a
run reads them as it would read the benchmarks.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from loopscope.errors import LoopscopeError, setting
from loopscope.models.registry import EMBEDDED
from loopscope.store.writer import clear_write_errors, write_atomically
from loopscope.tasks.known_tasks import BENCHMARKS

TOKENIZER = str(EMBEDDED / "toy-ouro")  # a token for each word
WORDS = ["the", "and", "has", "that", "dollars", "for", "many", "are", "with", "was", "each", "more", "about", "had"]
TOGETHER = 0.5  # correlation of the logarithms of a prompt's and an answer's length
UNEVEN = 0.25  # standard deviation of the logarithm of an option's length around its question's


def stand_in_options(folder: Path, tasks: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `measure` with stand-ins for the benchmarks, which are written into a folder."""
    if "random_weights" not in options.get("model_args", {}):
        raise LoopscopeError(
            f"{setting('stand_ins', True)} means words without meaning: give {setting('random_weights', True)} as well"
        )
    if options.get("data_dir") is not None:
        raise LoopscopeError(f"{setting('data_dir')} has the benchmarks: leave out {setting('stand_ins', True)}")
    write_stand_ins(folder, tasks)
    return {"tokenizer": TOKENIZER, **options, "data_dir": str(folder)}


def write_stand_ins(folder: Path, tasks: Iterable[str]) -> None:
    """Whole splits for evaluation sets such as "gsm8k:train256", as files of `--data-dir`; what is there is kept."""
    with clear_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        name, _, asked = task.partition(":")
        benchmark = BENCHMARKS[name]
        subset = benchmark.subsets.get(asked)
        split = asked if subset is None else subset.split
        path = folder / f"{name}_{split}.jsonl"
        if not path.is_file():
            lines = (json.dumps(row) + "\n" for row in stand_in_rows(name, benchmark.splits[split]))
            write_atomically(path, "".join(lines).encode())


def stand_in_rows(name: str, count: int) -> Iterator[dict[str, Any]]:
    """Rows of a benchmark in its published layout."""
    source = files("loopscope.reproduction").joinpath("stand_ins.toml").read_text(encoding="utf-8")
    first = 0
    for part in tomllib.loads(source)[name]:
        rows = min(count - first, part.get("rows", count))
        yield from _part(name, part, first, rows)
        first += rows


def _part(name: str, given: Mapping[str, Any], first: int, count: int) -> Iterator[dict[str, Any]]:
    options = given.get("options", 1)
    draw = np.random.default_rng(first + count)
    text = np.array(WORDS)[draw.integers(len(WORDS), size=20_000)].tolist()
    of_prompt = draw.standard_normal(count)
    of_answer = TOGETHER * of_prompt + (1 - TOGETHER**2) ** 0.5 * draw.standard_normal(count)
    prompts = _lengths(given["prompt"], given["prompt_spread"], of_prompt) - given["wording"]
    answers = _lengths(given.get("answer", 1), given.get("answer_spread", 0), of_answer)
    uneven = np.exp(UNEVEN * draw.standard_normal((count, options)) - UNEVEN**2 / 2) if options > 1 else 1.0
    lengths = np.maximum(1, np.rint(answers[:, None] * uneven)).astype(int)
    starts = draw.integers(len(text) // 2, size=(count, options + 1))

    def words(start: int, length: float) -> str:
        return " ".join(text[start : start + max(1, round(length))])

    for n in range(count):
        answer = [words(start, length) for start, length in zip(starts[n, 1:], lengths[n], strict=True)]
        yield _row(name, first + n, words(starts[n, 0], prompts[n]), answer)


def _lengths(mean: float, spread: float, normal: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    drawn = np.exp(spread * normal)
    return mean / drawn.mean() * drawn


def _row(name: str, number: int, prompt: str, answers: list[str]) -> dict[str, Any]:
    right = number % len(answers)
    labelled = {"label": list("ABCDE"[: len(answers)]), "text": answers}
    if name == "gsm8k":
        return {"question": prompt, "answer": answers[0]}
    if name == "math500":
        return {"problem": prompt, "solution": answers[0]}
    if name == "hellaswag":
        return {"activity_label": "Words", "ctx_a": prompt, "ctx_b": "", "endings": answers, "label": str(right)}
    if name == "piqa":
        return {"goal": prompt, "sol1": answers[0], "sol2": answers[1], "label": right}
    if name == "boolq":
        return {"passage": prompt, "question": "is it", "answer": right == 1}
    return {"question": prompt, "choices": labelled, "answerKey": "ABCDE"[right]}
