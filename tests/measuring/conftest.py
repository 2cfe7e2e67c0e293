"""Shared by the tests of the pass: small checkpoints in the official layout, and calls of `measure` with few words."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from loopscope.api import measure_with as measure
from loopscope.models.load import load_model
from loopscope.models.registry import EMBEDDED
from loopscope.store import StoredRun
from tests.measuring import plain_paths, plain_trace

# Run by another process, not collected.
collect_ignore = [
    *("small_gpt.py", "plain_paths.py", "plain_trace.py"),
]

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
Pass = Callable[..., StoredRun]

OURO = {
    "architectures": ["OuroForCausalLM"],
    "model_type": "ouro",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "total_ut_steps": 4,
    "early_exit_threshold": 0.7,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "torch_dtype": "float32",
}
HUGINN = {
    "architectures": ["RavenForCausalLM"],
    "model_type": "huginn_raven",
    "n_layers": 3,
    "n_layers_in_prelude": 1,
    "n_layers_in_recurrent_block": 1,
    "n_layers_in_coda": 1,
    "n_embd": 32,
    "n_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "bias": False,
    "injection_type": "linear",
    "state_init": "like-init",
    "qk_bias": True,
    "tie_embeddings": True,
    "norm_eps": 1e-6,
    "rope_base": 10000,
    "block_size": 2048,
    "mean_recurrence": 4,
    "init_values": {"std": 0.11, "embed_scale": 5.66},
    "torch_dtype": "float32",
}


def make_checkpoint(folder: Path, family: str, tokenizer: Path, vocabulary: int) -> str:
    """A folder in the layout of the published checkpoints with weights drawn from a seed; its path."""
    folder.mkdir(parents=True)
    config = dict(OURO if family == "ouro" else HUGINN, vocab_size=vocabulary)
    if family == "huginn":
        config["padded_vocab_size"] = vocabulary
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(tokenizer / "tokenizer.json", folder / "tokenizer.json")
    model: Any = load_model(folder, model_args={"random_weights": True, "seed": 3})
    tied = model.tied
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items() if name not in tied}
    if family == "ouro":
        # A head that says something, and a gate that does not treat every position alike.
        tensors["lm_head.weight"] *= 3.0
        gate = torch.Generator().manual_seed(4)
        tensors["model.early_exit_gate.weight"].normal_(0.0, 0.3, generator=gate)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return str(folder)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """`checkpoint("ouro")`: a small checkpoint with the embedded models' tokenizer, float32."""
    made: dict[str, str] = {}

    def get(family: str) -> str:
        if family not in made:
            folder = tmp_path_factory.mktemp("checkpoints") / f"tiny-{family}"
            made[family] = make_checkpoint(folder, family, EMBEDDED / "toy-ouro", 1024)
        return made[family]

    return get


def shared(name: str) -> Path:
    """A folder beside the repository."""
    if not (SHARED / name).is_dir():
        pytest.skip(f"needs the folder shared/{name} beside the repository")
    return SHARED / name


@pytest.fixture(scope="session")
def plain() -> Any:
    """`plain.plain_updates(folder, task, transition, …)`: updates as plain tensors, see `plain_paths.py`."""
    return plain_paths


@pytest.fixture(scope="session")
def small_gpt() -> Any:
    """`small_gpt.py` as a module that cannot be imported by its name, as a notebook's cells cannot."""
    spec = importlib.util.spec_from_file_location("small_gpt", Path(__file__).with_name("small_gpt.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Complete copies of the benchmarks."""
    return shared("data")


@pytest.fixture
def measured(checkpoint: Callable[[str], str], tmp_path: Path) -> Pass:
    """`measured("ouro", "arithmetic", …)`: a finished run of a small checkpoint, in a folder of its own."""
    count = iter(range(100))

    def call(family: str = "ouro", task: str = "arithmetic", **options: Any) -> StoredRun:
        given: dict[str, Any] = {"limit": 5, "transitions": [2], "depths": [0, 4], "device": "cpu", **options}
        output = given.pop("output", tmp_path / f"run-{next(count)}")
        return measure(checkpoint(family), [task], output=output, **given)

    return call


DYING = """

import os
import signal


class Dying(LoopedGPT):
    def embed(self, batch):
        if 5 in (batch.source_rows or ()) and os.path.exists({fuse!r}):
            os.unlink({fuse!r})
            os.kill(os.getpid(), signal.SIGKILL)
        return super().embed(batch)


def dying():
    torch.manual_seed(0)
    return Dying(GPT())
"""


@pytest.fixture
def dying(tmp_path: Path) -> tuple[str, Path]:
    """`mine.py:dying`, a model whose process ends itself at row 5 while there is a fuse, and the fuse."""
    fuse, code = tmp_path / "fuse", tmp_path / "mine.py"
    code.write_text(Path(__file__).with_name("small_gpt.py").read_text() + DYING.format(fuse=str(fuse)))
    return f"{code}:dying", fuse


@pytest.fixture(scope="session")
def same_trace() -> Callable[..., None]:
    """`same_trace(run, model, examples)`: the trace of a run is that of the formulas, to rounding."""

    def check(run: StoredRun, model: Any, examples: list[Any], tolerance: float = 2e-6) -> None:
        found, lens = run.trace.collect(), run.manifest.lens
        expected = plain_trace.trace_by_formula(model, examples, run.manifest.depths[-1], lens)
        exact = ["row", "depth", "option", "token", "position", "token_id", "rank", "lens_ids"]
        for name in exact:
            assert found[name].to_list() == expected[name].to_list(), name
        assert found["top_id"].to_list() == expected["top_id"].cast(pl.Int32).to_list()
        for name in sorted(set(expected.columns) - {*exact, "top_id", "lens_probs"}):
            assert found[name].is_null().to_list() == expected[name].is_nan().to_list(), name
            values, by_formula = found[name].fill_null(0.0), expected[name].fill_nan(0.0)
            np.testing.assert_allclose(values, by_formula, rtol=tolerance, atol=tolerance, err_msg=name)
        np.testing.assert_allclose(np.stack(found["lens_probs"]), np.stack(expected["lens_probs"]), rtol=tolerance)

    return check


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Every file of a run by name, but for the log and the lock."""

    def read(path: Path) -> dict[str, bytes]:
        return {
            file.relative_to(path).as_posix(): file.read_bytes()
            for file in sorted(path.rglob("*"))
            if file.is_file() and file.name not in ("events.jsonl", ".loopscope.lock")
        }

    return read


CHOICES = [
    {"context": "12+7 = ? The answer is", "options": [" 19", " 18", " 20", " 5", " 191"], "answer": 0},
    {"context": "3", "options": ["+4", " - 1", "3", "0"], "answer": 2},
    {"context": "Which is larger, 4 or 9? It is", "options": [" 4", " 9"], "answer": 1},
    {"context": "7 times 8 makes", "options": [" 56", " 56 exactly, as 7*8 = 56", " 65"], "answer": 0},
    {"context": "1+1=2. 2+2=4. 3+3=6. 4+4=8. 5+5=", "options": ["10", "11", "1", "9 or so"], "answer": 0},
]


@pytest.fixture
def options(tmp_path: Path) -> str:
    """A file of questions whose options are of unlike lengths."""
    path = tmp_path / "choices.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CHOICES))
    return str(path)


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    """Whether two runs of other layouts hold the same: `assert_same(found, expected, tolerance)`."""

    def same(found_run: StoredRun, expected_run: StoredRun, tolerance: float) -> None:
        """Every column of every table: equal where it is no real number, to rounding where it is one."""
        for table in expected_run.manifest.tables():
            found, expected = found_run.read(table.name), expected_run.read(table.name)
            assert found.columns == expected.columns
            for column in table.columns:
                new, old = found[column.name], expected[column.name]
                assert new.is_null().equals(old.is_null()), column.name
                if not column.element.startswith("float"):
                    assert new.equals(old), column.name
                    continue
                np.testing.assert_allclose(numbers(new), numbers(old), tolerance, tolerance, err_msg=column.name)

    return same


def numbers(column: pl.Series) -> np.ndarray[Any, Any]:
    while isinstance(column.dtype, pl.List | pl.Array):
        column = column.explode()
    return column.drop_nulls().cast(pl.Float64).to_numpy()
