"""Summed option log-likelihoods against lm-evaluation-harness's own, on the same weights (lm_eval_figures.json)."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from loopscope.models.batch import Batch
from loopscope.models.families.layer_loop import LayerLoop, LayerLoopConfig
from loopscope.models.tokenizer import Tokenizer
from loopscope.tasks import Example, load_task

FIGURES = json.loads(Path(__file__).with_name("lm_eval_figures.json").read_text())["tasks"]


@pytest.fixture(scope="module")
def model(tiny_llama: ModuleType) -> LayerLoop:
    """The tiny Llama model with all its layers looped once: the ordinary model."""
    looped = LayerLoop(LayerLoopConfig.read(tiny_llama.CONFIG, chosen={"loop": "0-1"}))
    looped.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tiny_llama.weights().items()})
    return looped.eval()


def summed_log_likelihoods(model: LayerLoop, example: Example) -> list[float]:
    batch = Batch.from_rows([sequence.token_ids for sequence in example.sequences])
    state = model.states(batch, [1])[1]
    sums = []
    for row, sequence in enumerate(example.sequences):
        places = torch.tensor([(row, position) for position in sequence.positions])
        with torch.no_grad():
            log_p = model.readout(state, places).log_softmax(-1)
        sums.append(log_p.gather(1, torch.tensor(sequence.targets)[:, None]).sum().item())
    return sums


@pytest.fixture(scope="module", params=sorted(FIGURES))
def compared(request: pytest.FixtureRequest, data_dir: Path, ouro_tokenizer: Tokenizer) -> tuple[dict, list[Example]]:
    figures = FIGURES[request.param]
    task = load_task(request.param, data_dir=data_dir, ids=figures["rows"])
    return figures, list(task.encode(ouro_tokenizer))


def test_same_rows_and_right_options(compared: tuple[dict, list[Example]]) -> None:
    figures, examples = compared
    assert [example.source_row for example in examples] == figures["rows"]
    assert [example.answer for example in examples] == figures["targets"]


def test_same_split_into_context_and_continuation(compared: tuple[dict, list[Example]]) -> None:
    figures, examples = compared
    lengths = [[len(sequence.positions) for sequence in example.sequences] for example in examples]
    contexts = [[sequence.positions[0] + 1 for sequence in example.sequences] for example in examples]
    assert lengths == figures["continuation_tokens"]
    assert contexts == figures["context_tokens"]


def test_summed_log_likelihoods_agree_in_float32(compared: tuple[dict, list[Example]], model: LayerLoop) -> None:
    figures, examples = compared
    for example, theirs in zip(examples, figures["log_likelihoods"], strict=True):
        assert summed_log_likelihoods(model, example) == pytest.approx(theirs, rel=0, abs=1e-3)
