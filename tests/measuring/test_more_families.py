"""Published families through the whole pass: every level against double backward, killed and resumed, replayed, shown.

The tiny checkpoints are those of the published implementations' reference outputs; one token is one byte.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from loopscope.api import measure_with as measure
from loopscope.measuring.verify import Named, measure_again
from loopscope.models import Batch, load_model, load_tokenizer
from loopscope.models.protocol import Context
from loopscope.models.walk import Walk, read
from loopscope.store import StoredRun, verify
from loopscope.tasks.encoding import Example, encode_row
from loopscope.tasks.load import load_task

GOLDEN = Path(__file__).resolve().parents[1] / "models" / "golden"
CASES = [
    *("nanbeige", "nanbeige-skip", "hrm_text", "hrm_text:attention=causal,L_cycles=2", "loopus", "parcae"),
    *("loopformer:schedule=1/2+1/4+1/8+1/8", "tmlt"),
]
SOLUTIONS = [
    {"prompt": "2 plus 2 is\n", "solution": "4, of course."},
    {"prompt": "Three times three\n", "solution": "makes nine."},
    {"prompt": "A dozen and one more\n", "solution": "is 13: thirteen."},
]
OPTIONS = [
    {"context": "The capital of France is", "options": ["Paris", "Rome", "Oslo"], "answer": 0},
    {"context": "Seven and one make", "options": ["nine", "eight"], "answer": 1},
]
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
    for name, change in (("nanbeige-skip", {"skip_loop_final_norm": True}), ("loopus", {"q_threshold": 0.6})):
        config = json.loads((folder / name / "config.json").read_text())
        (folder / name / "config.json").write_text(json.dumps(config | change))
    for name, rows in (("solutions", SOLUTIONS), ("options", OPTIONS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def measured(place: Path) -> Callable[..., StoredRun]:
    """`measured("loopus", "options", "full")`: a run in float64 with tokens, made once."""
    made: dict[tuple[str, ...], StoredRun] = {}

    def get(case: str, task: str, level: str) -> StoredRun:
        key = (case, task, level)
        if key not in made:
            name, _, args = case.partition(":")
            made[key] = measure(
                f"{place}/{name}",
                [str(place / f"{task}.jsonl")],
                model_args=args,
                output=place / f"runs/{len(made)}",
                transitions=[T],
                depths=[0, 3],
                level=level,
                tokens=True,
                lens=2,
                paths=level == "full",
                limit=1 if level == "full" else None,
                dtype="float64",
                readout_dtype="float64",
                device="cpu",
            )
        return made[key]

    return get


class Alone:
    """Each sequence by itself, unpadded, in float64: φ from the interpolated state, derivatives by double backward."""

    def __init__(self, case: str, task: Path) -> None:
        spec, _, args = case.partition(":")
        self.model: Any = load_model(spec, model_args=args, dtype="float64")
        tokenizer, loaded = load_tokenizer(spec), load_task(str(task))
        self.examples = [encode_row(tokenizer, row, loaded.encoding) for row in loaded.rows]

    def ends(self, example: Example, depth: int) -> list[tuple[torch.Tensor, torch.Tensor, Context]]:
        """H and H⁺ of every sequence, with its context."""
        found = []
        for sequence in example.sequences:
            batch = Batch.from_rows(
                [sequence.token_ids],
                source_rows=[example.source_row],
                prompt_lengths=[sequence.positions[0] + 1],
            )
            with torch.no_grad():
                walk = Walk.of(self.model, batch).to(depth)
                before = walk.state
                found.append((before, walk.advance(), walk.context))
        return found

    def coefficients(self, example: Example, depth: int) -> tuple[float, float, float]:
        """ΔU, A and Q."""
        ends = self.ends(example, depth)

        def utility(scale: torch.Tensor) -> torch.Tensor:
            scores = []
            for sequence, (before, after, context) in zip(example.sequences, ends, strict=True):
                state = before + scale * (after - before)
                logits = read(self.model, state, None, torch.float64, context)[0]
                at = torch.log_softmax(logits[list(sequence.positions)], -1)
                scores.append(at[range(len(sequence.targets)), list(sequence.targets)].mean())
            stacked = torch.stack(scores)
            return stacked[0] if example.answer is None else torch.log_softmax(stacked, 0)[example.answer]

        zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
        start = utility(zero)
        (slope,) = torch.autograd.grad(start, zero, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, zero)
        with torch.no_grad():
            gain = utility(torch.ones((), dtype=torch.float64)) - start
        return gain.item(), slope.item(), curvature.item() / 2


@pytest.mark.parametrize("task", ["solutions", "options"])
@pytest.mark.parametrize("case", CASES)
def test_coefficients_are_those_of_double_backward(
    case: str, task: str, place: Path, measured: Callable[..., StoredRun]
) -> None:
    run = measured(case, task, "quick" if task == "solutions" else "grid")
    alone = Alone(f"{place}/{case}", place / f"{task}.jsonl")
    expected = np.array([alone.coefficients(example, T) for example in alone.examples])
    found = run.records.sort("row").select("gain", "slope", "quadratic").to_numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    assert np.abs(expected).min() > 1e-4
    named = Named(tasks=(str(place / f"{task}.jsonl"),))
    assert not verify(run.path, partial(measure_again, named=named)).findings
    assert run.manifest.model.affine_readout == (case.partition(":")[0] in ("nanbeige", "hrm_text"))


@pytest.mark.parametrize("case", CASES)
def test_gates_are_recorded_where_there_is_one(case: str, place: Path, measured: Callable[..., StoredRun]) -> None:
    run = measured(case, "options", "grid")
    tokens = run.read("tokens").sort("row", "option", "token")
    if case != "loopus":
        assert tokens["exit_depth"].null_count() == tokens.height
        return
    alone = Alone(f"{place}/{case}", place / "options.jsonl")
    confidence = []
    for example in alone.examples:
        for sequence in example.sequences:
            states = alone.model.states(Batch.from_rows([sequence.token_ids]), range(1, 5))
            gates = [torch.sigmoid(alone.model.gate_logits(state))[0] for state in states.values()]
            stops = torch.stack([*gates[:-1], torch.full_like(gates[0], 2.0)]) > alone.model.config.q_threshold
            depth = stops.int().argmax(0) + 1
            confidence += [(gates[T - 1][p].item(), depth[p].item()) for p in sequence.positions]
    np.testing.assert_allclose(tokens["exit_cdf"], [value for value, _ in confidence], rtol=1e-12)
    assert tokens["exit_depth"].to_list() == tokens["exit_depth_fp64"].to_list() == [depth for _, depth in confidence]
    assert len(set(tokens["exit_depth"])) > 1


@pytest.mark.parametrize(
    ("case", "deepest", "clock"),
    [("loopformer", 9, 8), ("loopformer:budget=2", 3, 2), ("tmlt", 9, 8), ("loopformer", 8, None), ("parcae", 9, None)],
)
def test_steps_beyond_the_trained_time_are_said(
    case: str, deepest: int, clock: int | None, place: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    run = measure(
        f"{place}/{case.partition(':')[0]}",
        [str(place / "solutions.jsonl")],
        model_args=case.partition(":")[2],
        output=tmp_path / "run",
        transitions=[1],
        depths=[deepest],
        level="quick",
        limit=1,
        notify=said.append,
    )
    lines = [line for line in said if "trained" in line]
    assert lines == (
        [
            f"{case}: steps know their time and were trained for {clock}; those up to depth {deepest} leave "
            "the trained range"
        ]
        if clock
        else []
    )
    assert [event["message"] for event in run.events if event["event"] == "notice"] == lines
