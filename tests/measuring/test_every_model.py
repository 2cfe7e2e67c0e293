"""Token rows, certificates, trace and lens for every kind of model that `measure` takes, or one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import loopscope as ls
from loopscope.api import measure_with

WIDTH, VOCABULARY = 16, 512
TASK = ls.Task.from_ids(prompts=[[5, 17, 42], [9, 3]], solutions=[[7, 99], [12]])


def _modules() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"words": nn.Embedding(VOCABULARY, WIDTH), "turn": nn.Linear(WIDTH, WIDTH)})


def _general() -> Any:
    """README's model of three lines."""
    used = _modules()
    words, turn = used["words"], used["turn"]
    return ls.wrap(embed=words, step=lambda h: h + torch.tanh(turn(h)), readout=lambda h: h @ words.weight.T)


class _Module(ls.LoopedModule):
    name, family, hidden_size, vocabulary_size, trained_depth = "module", "mine", WIDTH, VOCABULARY, 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.turn = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)

    def embed(self, batch: Any) -> ls.Context:
        return ls.Context(self.words(batch.input_ids), batch)

    def step(self, state: Tensor, context: Any) -> Tensor:
        return state + torch.tanh(self.turn(state))

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        state = state if positions is None else state[positions[:, 0], positions[:, 1]]
        used = self.in_dtype(self.words, dtype)
        return functional.softsign(state.to(used.weight.dtype)) @ used.weight.T


def _span() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return ls.loop_layers(transformers.LlamaForCausalLM(config), 1, 1)


MODELS: dict[str, Any] = {
    "wrap, readout": _general,
    "module": _Module,
    "transformers span": _span,
    "toy-ouro inside": lambda: ls.load_model("toy-ouro", model_args={"inside": 3}),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_every_option(name: str, tmp_path: Path) -> None:
    asked: Any = {"transitions": [2], "depths": "1-3", "device": "cpu"}
    model = MODELS[name]()
    run = measure_with(model, TASK, output=tmp_path / "run", tokens=True, trace=True, lens=5, **asked)
    tokens, trace = run.tokens.collect(), run.trace.collect()
    assert len(tokens) == 3
    assert len(trace) == 9
    traced = trace.filter(pl.col("depth") == 2).sort("row", "token")["log_prob"].to_list()
    assert traced == pytest.approx(tokens.sort("row", "token")["utility_before"].to_list(), abs=1e-4)
    assert all(len(ids) == 5 for ids in trace["lens_ids"])
    with pytest.raises(ls.LoopscopeError, match="is not certified, its readout is not affine: leave out certify"):
        measure_with(model, TASK, output=tmp_path / "certified", certify=True, **asked)
