"""A case of the corpus, the place where it runs, and what came of it."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOLUTIONS = '{"prompt": "2 plus 2 is\\n", "solution": "4."}\n{"prompt": "3 plus 2 is\\n", "solution": "5."}\n'
OPTIONS = '{"context": "2 plus 2 is", "options": ["4", "5"], "answer": 0}\n'
OURO: dict[str, Any] = {
    "architectures": ["OuroForCausalLM"], "model_type": "ouro", "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "max_position_embeddings": 2048, "tie_word_embeddings": False,
    "total_ut_steps": 4, "early_exit_threshold": 0.7, "eos_token_id": 0, "torch_dtype": "float32", "vocab_size": 1024,
}  # fmt: skip
RUN: dict[str, Any] = {
    "tasks": ["arithmetic"], "transitions": [2], "depths": "1-3", "limit": 4, "level": "grid", "tokens": True,
    "lens": 2, "device": "cpu", "protocol": "loopscope:unit_size=2",
}  # fmt: skip
"""What the shared run was measured with; the same call continues it."""
EVIL = 'import pathlib\npathlib.Path("ran").touch()\ndef build(**options): ...\ndef f(*rest): ...\n'
"""Code that leaves a file named `ran` in the case's folder if anything imports it."""


@dataclass(frozen=True)
class Place:
    """A case's own empty folder, which is the working folder, and the good things that no case may change."""

    here: Path
    shared: Path

    @property
    def model(self) -> Path:
        """A small checkpoint in the published layout."""
        return self.shared / "model"

    @property
    def run(self) -> Path:
        """A finished run of it: four questions in two units, with tokens, trace, lens."""
        return self.shared / "run"

    def file(self, name: str, content: str | bytes) -> Path:
        """A file in the case's own folder."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
        return path

    def copy(self, what: str) -> Path:
        """The case's own copy of the shared "model" or "run"."""
        return Path(shutil.copytree(self.shared / what, self.here / what))


def make_shared(shared: Path) -> None:
    """The good things, made with loopscope itself."""
    from safetensors.torch import save_file

    import loopscope as ls
    from loopscope.models.registry import EMBEDDED

    model = shared / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(OURO))
    shutil.copy(EMBEDDED / "toy-ouro" / "tokenizer.json", model)
    made: Any = ls.load_model(model, model_args={"random_weights": True, "seed": 3})
    tensors = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    save_file(tensors, str(model / "model.safetensors"), metadata={"format": "pt"})
    ls.measure(str(model), output=shared / "run", **RUN)


@dataclass(frozen=True)
class Outcome:
    """What came of a case: `line` (refused in one line), `accepted`, or what must never be."""

    kind: str
    text: str = ""


@dataclass(frozen=True)
class Case:
    """A name that says what is wrong (or unusual), the input, and what must come of it."""

    name: str
    act: Callable[[Place], Outcome]
    wanted: tuple[str, ...] = ("line",)


GOOD, EITHER = ("accepted",), ("line", "accepted")
Argument = str | Callable[[Place], Any]


def case(name: str, act: Callable[[Place], Outcome], wanted: tuple[str, ...] = ("line",)) -> Case:
    """A case, whose name says where it must be accepted."""
    return Case(f"accepted: {name}" if wanted == GOOD else name, act, wanted)


def command(
    name: str, *arguments: Argument, wanted: tuple[str, ...] = ("line",), env: Mapping[str, str] | None = None
) -> Case:
    """A command line; arguments that depend on the place are functions of it."""

    def act(place: Place) -> Outcome:
        os.environ.update(env or {})  # the worker puts it back
        return run_command([given if isinstance(given, str) else str(given(place)) for given in arguments])

    return case(name, act, wanted)


def call(name: str, function: Callable[[Place], Any], wanted: tuple[str, ...] = ("line",)) -> Case:
    """A call in Python."""
    return case(name, lambda place: run_call(lambda: function(place)), wanted)


def run_command(arguments: Sequence[str]) -> Outcome:
    """The command line in this process, as its entry point runs it."""
    from loopscope.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    before, sys.argv = sys.argv, ["loopscope", *arguments]
    code: object = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as left:
        code = left.code
    except BaseException as error:
        return Outcome("traceback", f"{type(error).__name__}: {error}"[:300])
    finally:
        sys.argv = before
    said = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    if code in (0, None):
        return Outcome("accepted", said[:300])
    return refusal(said) if code == 2 and said.startswith("loopscope: ") else Outcome(f"exit code {code}", said[-600:])


def refusal(text: str) -> Outcome:
    """What a message is: one line, or the line of the user's own code, whose frames follow, or neither."""
    first, *more = text.splitlines() or [""]
    if " failed: " in first:
        return Outcome("user code failed", first)
    return Outcome("line", first) if first.strip() and not more else Outcome("not one line", text[-600:])


def run_call(function: Callable[[], Any]) -> Outcome:
    """A call: refused by a LoopscopeError of one line, accepted, or broken."""
    from loopscope import LoopscopeError

    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            function()
    except LoopscopeError as error:
        return refusal(str(error))
    except BaseException as error:
        return Outcome("traceback", f"{type(error).__name__}: {error}"[:300])
    return Outcome("accepted")


def measuring(**changes: str | None) -> list[str]:
    """The words of a `measure` that works but for its model, some flags changed; None leaves one out."""
    flags = {"tasks": "arithmetic", "transitions": "1", "limit": "1", "level": "quick", "device": "cpu"}
    flags |= {"progress": "none", "output": "out"}
    merged = {**flags, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return ["measure", *(f"--{name}={value}" for name, value in merged.items() if value is not None)]


def model_of(place: Place) -> str:
    return f"--model={place.model}"


def measure(place: Place, **changes: Any) -> Any:
    """A call of `measure` that works, some arguments changed."""
    import loopscope as ls

    given: dict[str, Any] = {"model": str(place.model), "tasks": ["arithmetic"], "output": place.here / "out"}
    given |= {"transitions": [1], "limit": 1, "level": "quick", "device": "cpu"} | changes
    return ls.measure(**given)


def shown(value: Any) -> str:
    """A value short enough for a name."""
    text = repr(value)
    return text if len(text) <= 48 else f"{text[:20]}… of {len(text)} characters"
