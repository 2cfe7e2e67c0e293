"""Where a case runs: a folder of its own, and good things beside it to spoil: a checkpoint, a run, a data file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["OuroForCausalLM"],
    "model_type": "ouro",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
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
    "vocab_size": 1024,
}
SOLUTIONS = '{"prompt": "2 plus 2 is\\n", "solution": "4."}\n{"prompt": "3 plus 2 is\\n", "solution": "5."}\n'
OPTIONS = '{"context": "2 plus 2 is", "options": ["4", "5"], "answer": 0}\n'


@dataclass(frozen=True)
class Place:
    """A case's own empty folder, and the good things that all cases share and none may change."""

    here: Path
    shared: Path

    @property
    def model(self) -> Path:
        """A small checkpoint in the published layout."""
        return self.shared / "model"

    @property
    def run(self) -> Path:
        """A finished run of it: four questions in two units, with token rows."""
        return self.shared / "run"

    def file(self, name: str, content: str | bytes) -> str:
        """A file in the case's own folder; its path."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def own_model(self, **changes: Any) -> Path:
        """A copy of the checkpoint with fields of its configuration changed; None removes one."""
        folder = self.here / "model"
        shutil.copytree(self.model, folder)
        config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def own_run(self) -> Path:
        """A copy of the run."""
        folder = self.here / "run"
        shutil.copytree(self.run, folder)
        return folder

    def spoiled_run(self, file: str, change: Callable[[bytes], bytes]) -> str:
        """A copy of the run with one file changed; its path."""
        run = self.own_run()
        path = run / file
        path.write_bytes(change(path.read_bytes()))
        return str(run)


def make_shared(shared: Path) -> None:
    """The good things, made with loopscope itself."""
    from safetensors.torch import save_file

    from loopscope import load_model
    from loopscope.models.registry import EMBEDDED

    shared.mkdir(parents=True)
    model = shared / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    shutil.copy(EMBEDDED / "toy-ouro" / "tokenizer.json", model / "tokenizer.json")
    made: Any = load_model(model, model_args={"random_weights": True, "seed": 3})
    tensors = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    save_file(tensors, str(model / "model.safetensors"), metadata={"format": "pt"})
    measure_run(model, shared / "run")


def measure_run(model: Path, output: Path) -> None:
    """The run that cases spoil; the same call continues it."""
    import loopscope as ls

    ls.measure(
        str(model),
        ["arithmetic"],
        output=output,
        transitions=[2],
        limit=4,
        unit_size=2,
        level="grid",
        tokens=True,
        device="cpu",
    )
