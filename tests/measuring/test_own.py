"""A model and a task of the user's own through the whole pass: the documentation's model, a JSONL file."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loopscope.api import measure_with as measure
from loopscope.errors import LoopscopeError
from loopscope.measuring import plan as facts
from loopscope.measuring.rerun import Named
from loopscope.measuring.verify import measure_again
from loopscope.models.registry import EMBEDDED
from loopscope.store import StoredRun, verify

PAGE = Path(__file__).resolve().parents[2] / "docs" / "your-own-model.md"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The documentation's model as an installed package with a tokenizer."""
    (code,) = re.findall(r"```python\n(# my_looped.py\n.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    code += f"\n\ndef tokenizer_folder():\n    return {str(EMBEDDED / 'toy-ouro')!r}\n"
    (tmp_path / "my_looped.py").write_text(code)
    info = tmp_path / "my_looped-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-looped\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[loopscope.models]\nmy-wheel = my_looped:build\n"
        "[loopscope.tokenizers]\nmy-wheel = my_looped:tokenizer_folder\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield "my-wheel"
    sys.modules.pop("my_looped", None)


def _run(wheel: str, output: Path) -> StoredRun:
    """Two units of one question."""
    return measure(wheel, ["arithmetic"], output=output, transitions=[1], limit=2, unit_size=1, device="cpu")


def _other_weights(module: Path, seed: int) -> None:
    """Another checkpoint under the same name, in the same code."""
    sys.modules.pop("my_looped", None)
    module.with_name("weights.txt").write_text(str(seed))


@pytest.fixture
def seeded(wheel: str, tmp_path: Path) -> str:
    """The same model with weights that a file beside it decides."""
    module = tmp_path / "my_looped.py"
    code = module.read_text()
    assert "torch.manual_seed(0)" in code
    read = f"torch.manual_seed(int(__import__('pathlib').Path({str(tmp_path / 'weights.txt')!r}).read_text()))"
    module.write_text(code.replace("torch.manual_seed(0)", read))
    _other_weights(module, 1)
    return wheel


def test_same_weights_resume(seeded: str, tmp_path: Path) -> None:
    run = _run(seeded, tmp_path / "run")
    shards = {path: path.read_bytes() for path in run.path.rglob("*.parquet")}
    (run.path / "units" / f"{run.units[-1].name}.json").unlink()
    _other_weights(tmp_path / "my_looped.py", 1)
    again = _run(seeded, tmp_path / "run")
    assert again.finished
    assert {path: path.read_bytes() for path in run.path.rglob("*.parquet")} == shards
    assert "which runs only where you name it" in measure_again(again).findings[0].message
    assert measure_again(again, Named(model=seeded)).findings == ()
    _other_weights(tmp_path / "my_looped.py", 2)
    (finding,) = measure_again(again, Named(model=seeded)).findings
    assert finding.message.startswith("not the sources of the run: model.weights.tensors was ")


def test_other_weights_of_the_same_name_are_refused(seeded: str, tmp_path: Path) -> None:
    run = _run(seeded, tmp_path / "run")
    (run.path / "units" / f"{run.units[-1].name}.json").unlink()
    _other_weights(tmp_path / "my_looped.py", 2)
    with pytest.raises(LoopscopeError, match=r"holds another run \(model\.weights\.tensors was '[0-9a-f]+…"):
        _run(seeded, tmp_path / "run")


def test_other_code_of_the_same_name_is_refused(seeded: str, tmp_path: Path) -> None:
    _run(seeded, tmp_path / "run")
    module = tmp_path / "my_looped.py"
    code = module.read_text()
    assert "functional.gelu(" in code
    module.write_text(code.replace("functional.gelu(", "functional.leaky_relu("))
    _other_weights(module, 1)
    importlib.invalidate_caches()
    with pytest.raises(LoopscopeError, match=r"model\.weights\.class my_looped\.\w+ was '[0-9a-f]+…"):
        _run(seeded, tmp_path / "run")


def test_older_run_that_says_less_is_measured_again(
    seeded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names no weights and a seed that the model never used; what it stores still decides."""
    with monkeypatch.context() as older:
        older.setattr(facts, "_weights", lambda model, card: {})
        older.setattr(facts, "_seeds", lambda model, card: {"initial_state": 20260904})
        run = _run(seeded, tmp_path / "run")
    assert StoredRun(run.path).manifest.seeds == {"initial_state": 20260904}
    assert measure_again(run, Named(model=seeded)).findings == ()
    _other_weights(tmp_path / "my_looped.py", 2)
    assert any("questions.slope" in finding.where for finding in measure_again(run, Named(model=seeded)).findings)


@pytest.mark.parametrize(("family", "seeds"), [("ouro", {}), ("huginn", {"initial_state": 20260904})])
def test_seed_of_an_initial_state_is_named_where_one_is_drawn(
    family: str, seeds: dict[str, int], checkpoint: Callable[[str], str], tmp_path: Path
) -> None:
    run = measure(checkpoint(family), ["arithmetic"], output=tmp_path / "run", depths=[1], limit=1, device="cpu")
    assert run.manifest.seeds == seeds


def test_model_of_the_documentation(wheel: str, tmp_path: Path) -> None:
    run = measure(
        wheel,
        ["arithmetic", "arithmetic-mc"],
        output=tmp_path / "run",
        transitions=[1, 3],
        level="full",
        tokens=True,
        limit=2,
        device="cpu",
    )
    assert run.finished
    assert verify(run).ok
    assert run.manifest.model.name == "my-wheel"
    assert run.manifest.seeds == {}
    assert run.records.height == 8
    assert run.read("tokens")["exit_depth"].null_count() == run.read("tokens").height


@pytest.mark.parametrize("family", ["ouro", "huginn"])
def test_solutions_of_ones_own(family: str, checkpoint: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    rows = [{"prompt": f"Add {n} and {n}.", "solution": f" That is {2 * n}.", "id": f"sum-{n}"} for n in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = measure(checkpoint(family), [f"sums={path}"], output=tmp_path / "run", transitions=[1], device="cpu")
    assert run.examples["example_id"].to_list() == ["sum-0", "sum-1", "sum-2"]
    assert run.examples["reference"].to_list() == [row["solution"] for row in rows]
    assert run.manifest.tasks[0].name == "sums"
    assert verify(run).ok


def test_options_of_ones_own(checkpoint: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "pick.jsonl"
    rows = [
        {"context": "The sky is", "options": [" blue.", " a fish.", " nine."], "answer": 0},
        {"context": "Two and two is", "options": [" four.", " five."], "answer": 0},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = measure(checkpoint("ouro"), [str(path)], output=tmp_path / "run", transitions=[1], tokens=True, device="cpu")
    assert [len(scores) for scores in run.depths["option_scores"]] == [3, 3, 2, 2]
    assert verify(run).ok


@pytest.mark.parametrize("kind", ["solution", "options"])
def test_token_offsets_cut_the_text_into_its_tokens(kind: str, measured: Callable[..., StoredRun]) -> None:
    run = measured("ouro", "arithmetic" if kind == "solution" else "arithmetic-mc", tokens=True, limit=2)
    texts = {row["row"]: row["options"] or [row["reference"]] for row in run.examples.iter_rows(named=True)}
    for (row, option), group in run.read("tokens").group_by(["row", "option"], maintain_order=True):
        text = texts[row][option]
        pieces = [text[a:b] for a, b in zip(group["text_start"], group["text_end"], strict=True)]
        assert "".join(pieces) == text
        assert group["text_start"].is_sorted()
