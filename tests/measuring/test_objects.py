"""Models in memory and in code of one's own: measured, killed and resumed, told apart, left as they were."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import loopscope as ls
from loopscope.api import measure_with
from loopscope.errors import LoopscopeError
from loopscope.measuring.verify import measure_again
from loopscope.run import Run

SCRIPT = Path(__file__).with_name("small_gpt.py")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two short questions."""
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    rows = [{"prompt": f"Add {n} and {n}.", "solution": f" {2 * n}.", "id": f"sum-{n}"} for n in range(2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"sums={path}"


@pytest.fixture(scope="module")
def gridded(small_gpt: Any, task: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An object's run that nothing disturbed."""
    output = tmp_path_factory.mktemp("object") / "run"
    return measure_with(small_gpt.build(), task, output=output, tokens=True, **small_gpt.OPTIONS)


def _records(run: Run) -> dict[str, bytes]:
    return {str(file.relative_to(run.path)): file.read_bytes() for file in sorted(run.path.rglob("*.parquet"))}


def test_an_object_is_measured_and_its_numbers_are_those_of_its_readout(
    gridded: Run, small_gpt: Any, task: str, plain: Any
) -> None:
    assert gridded.finished
    assert gridded.manifest.model.spec == "object:small_gpt.LoopedGPT"
    records = gridded.records.sort("row")
    assert records["scalar_quadratic"].to_numpy() == pytest.approx(records["quadratic"].to_numpy(), rel=1e-4)
    model = small_gpt.build().double().eval()
    for update, slope in zip(
        plain.updates_of(model, plain.examples_of("toy-ouro", task), 1), records["slope"], strict=True
    ):
        assert slope == pytest.approx(update.derivatives(0.0, 1)[0], abs=1e-5)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The script as an installed package with an entry point."""
    folder = tmp_path / "site"
    info = folder / "small_looped-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "small_looped.py").write_text(SCRIPT.read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: small-looped\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[loopscope.models]\nsmall-gpt = small_looped:build\n")
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    yield "small-gpt"
    sys.modules.pop("small_looped", None)


@pytest.mark.parametrize("way", ["file", "module", "entry point", "function"])
def test_every_way_gives_the_same_records(
    way: str, small_gpt: Any, installed: str, task: str, gridded: Run, tmp_path: Path
) -> None:
    spec = {
        "file": f"{SCRIPT}:build",
        "module": "small_looped:build",
        "entry point": installed,
        "function": small_gpt.build,
    }[way]
    run = measure_with(spec, task, output=tmp_path / "run", tokens=True, model_args="seed=0", **small_gpt.OPTIONS)
    assert _records(run) == _records(gridded)
    assert run.manifest.settings["model_args"] == {"seed": 0}
    # A run directory may come from anybody: it does not start code.
    (finding,) = measure_again(run).findings
    assert "which runs only where you name it" in finding.message or "a model in memory" in finding.message
    found = run.verify(model=spec, tasks=task)
    assert found.ok, found.findings


def test_another_model_is_refused_with_the_difference(small_gpt: Any, task: str, tmp_path: Path) -> None:
    def measured(model: Any, **more: Any) -> Run:
        return measure_with(model, task, output=tmp_path / "run", level="quick", **small_gpt.OPTIONS, **more)

    model = small_gpt.build()
    run = measured(model)
    (run.path / "units" / f"{run.units[-1].name}.json").unlink()
    model.gpt.seen = torch.zeros(3)  # as a model that keeps a table of positions does: no part of its identity
    assert measured(model).finished
    with pytest.raises(LoopscopeError, match=r"the weights are not the same"):
        measured(small_gpt.build(seed=1))
    with torch.no_grad():
        model.gpt.h[0].c_proj.bias[0] += 1.0
    with pytest.raises(LoopscopeError, match=r"the weights are not the same"):
        measured(model)


def test_an_object_is_left_as_it_was(small_gpt: Any, task: str, tmp_path: Path) -> None:
    model = small_gpt.build()
    model.gpt.wpe.weight.requires_grad_(False)
    model.gpt.ln_f.eval()
    before = [module.training for module in model.modules()], [weight.requires_grad for weight in model.parameters()]
    assert any(before[0])
    measure_with(model, task, output=tmp_path / "run", level="quick", **small_gpt.OPTIONS)
    ls.check(model)
    after = [module.training for module in model.modules()], [weight.requires_grad for weight in model.parameters()]
    assert after == before


@pytest.mark.parametrize(
    ("given", "args", "message"),
    [
        ("nowhere.py:build", None, "there is no file nowhere.py"),
        (f"{SCRIPT}:make", None, "has no make: the part after the colon names what builds the model"),
        (f"{SCRIPT}:OPTIONS", None, "OPTIONS in .* is a dict: name a function"),
        (str(SCRIPT), None, "is a file: name what builds the model, as in"),
        ("no_such_package.models:build", None, "cannot be imported: No module named 'no_such_package'"),
        (f"{SCRIPT}:build", {"width": 3}, "unexpected keyword argument 'width'"),
        (f"{SCRIPT}:build", "softcap", "write NAME=VALUE, each once"),
        (f"{SCRIPT}:build", "seed=1,seed=2", "write NAME=VALUE, each once"),
        (f"{SCRIPT}:build", {"seed": torch.zeros(1)}, "holds seed, a Tensor: give numbers, text"),
        (torch.nn.Linear(2, 2), None, "loopscope.wrap makes a model of three functions"),
        (lambda: torch.nn.Linear(2, 2), None, "lacks family, name, hidden_size.*loopscope.wrap makes"),
        (7, None, "model= takes a name, a model or a function that makes one, not 7"),
    ],
)
def test_a_mistake_is_one_line(given: Any, args: Any, message: str, task: str, tmp_path: Path) -> None:
    with pytest.raises(LoopscopeError, match=message) as caught:
        measure_with(given, task, output=tmp_path / "run", transitions=[1], model_args=args, device="cpu")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
