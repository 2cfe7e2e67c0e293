"""Published families through the whole pass against double backward; and the line about steps beyond trained time.

The tiny checkpoints are those of the published implementations' reference outputs; one token is one byte.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from loopscope.api import measure_with as measure

GOLDEN = Path(__file__).resolve().parents[1] / "models" / "golden"
CASES = [
    *("nanbeige", "nanbeige-skip", "hrm_text", "hrm_text:attention=causal,L_cycles=2", "loopus", "parcae"),
    *("loopformer:schedule=1/2+1/4+1/8+1/8", "tmlt"),
]
ROWS: dict[str, list[dict[str, Any]]] = {
    "solutions": [
        {"prompt": "2 plus 2 is\n", "solution": "4, of course."},
        {"prompt": "Three times three\n", "solution": "makes nine."},
    ],
    "options": [
        {"context": "The capital of France is", "options": ["Paris", "Rome", "Oslo"], "answer": 0},
        {"context": "Seven and one make", "options": ["nine", "eight"], "answer": 1},
    ],
}
T = 1


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints with a tokenizer of bytes, and both tasks as files."""
    folder = tmp_path_factory.mktemp("families")
    # Parcae's vocabulary has 192 entries: what ASCII can say.
    alphabet = [*map(chr, range(ord("!"), ord("~") + 1)), "Ġ", "Ċ"]
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    for name in ("nanbeige", "nanbeige-skip", "hrm_text", "loopus", "parcae", "loopformer", "tmlt"):
        shutil.copytree(GOLDEN / name.partition("-")[0], folder / name)
        tokenizer.save(str(folder / name / "tokenizer.json"))
    config = json.loads((folder / "nanbeige-skip" / "config.json").read_text())
    (folder / "nanbeige-skip" / "config.json").write_text(json.dumps(config | {"skip_loop_final_norm": True}))
    for name, rows in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("task", ROWS)
@pytest.mark.parametrize("case", CASES)
def test_coefficients_and_trace_are_those_of_plain_calculations(
    case: str, task: str, place: Path, plain: Any, same_trace: Callable[..., None], tmp_path: Path
) -> None:
    name, _, args = case.partition(":")
    path, exact = str(place / f"{task}.jsonl"), {"dtype": "float64", "readout_dtype": "float64"}
    level = "quick" if task == "solutions" else "grid"
    run = measure(
        f"{place}/{name}", [path], model_args=args, output=tmp_path / "run", transitions=[T], depths=[0, 3],
        level=level, lens=2, device="cpu", **exact,
    )  # fmt: skip
    updates = plain.plain_updates(f"{place}/{name}", path, T, dtype="float64", args=args)
    both = [(update.gain(1.0), *update.derivatives(0.0)) for update in updates]
    expected = np.array([(gain, slope, curvature / 2) for gain, slope, curvature in both])
    found = run.records.sort("row").select("gain", "slope", "quadratic").to_numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    assert np.abs(expected).min() > 1e-4
    same_trace(run, updates[0].model, [update.example for update in updates])
    assert run.manifest.model.affine_readout == (name in ("nanbeige", "hrm_text"))


@pytest.mark.parametrize(
    ("case", "deepest", "clock"),
    [("loopformer:budget=2", 3, 2), ("tmlt", 9, 8), ("parcae", 9, None)],
)
def test_steps_beyond_the_trained_time_are_named(
    case: str, deepest: int, clock: int | None, place: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    name, _, args = case.partition(":")
    run = measure(
        f"{place}/{name}", [str(place / "solutions.jsonl")], model_args=args, output=tmp_path / "run", transitions=[1],
        depths=[deepest], level="quick", limit=1, notify=lines.append,
    )  # fmt: skip
    said = f"{case}: steps know their time and were trained for {clock}; those up to depth {deepest} leave "
    assert [line for line in lines if "trained" in line] == ([said + "the trained range"] if clock else [])
    assert len([event for event in run.events if event["event"] == "notice"]) == bool(clock)
