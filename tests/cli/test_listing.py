"""`loopscope models` and `tasks`: one line each, whole names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from loopscope.cli.listing import model_rows, models, tasks
from loopscope.models.registry import PUBLISHED
from loopscope.tasks.known_tasks import BENCHMARKS


def test_every_published_model_has_one_whole_line(capsys):
    models()
    lines = capsys.readouterr().out.splitlines()
    for entry in PUBLISHED:
        (line,) = [line for line in lines if line.split()[:1] == [entry.name]]
        if entry.parameters is None:
            assert " ? " in line
        else:
            scale, unit = (1e9, "B") if entry.parameters >= 5e8 else (1e6, "M")
            assert f"{entry.parameters / scale:.2f}{unit}" in line
        assert f"{entry.trained_depth or '?'} loops" in line
        assert f"@{entry.revision[:8] if entry.revision else 'newest'}" in line


def test_embedded_models_are_listed(tmp_path, monkeypatch, capsys):
    from safetensors.torch import save_file
    from torch import zeros

    from loopscope.models import registry

    (tmp_path / "toy-x").mkdir()
    (tmp_path / "toy-x/config.json").write_text(
        '{"model_type": "ouro", "total_ut_steps": 5, "tie_word_embeddings": true}'
    )
    save_file({"a": zeros(3000, 4), "lm_head.weight": zeros(7)}, tmp_path / "toy-x/model.safetensors")
    monkeypatch.setattr(registry, "EMBEDDED", tmp_path)
    row = model_rows()[0]
    assert (row["name"], row["family"], row["parameters"], row["trained_depth"]) == ("toy-x", "ouro", 12000, 5)
    models()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "toy-x" in line]
    assert "12K" in line
    assert "5 loops" in line


def test_every_task_has_its_line_with_splits_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    tasks()
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert {"arithmetic", "arithmetic-mc", "stories", *BENCHMARKS} == set(lines)
    assert "test 1319, train 7473, train256;" in lines["gsm8k"]
    assert "Rowan/hellaswag@218ec52e" in lines["hellaswag"]
    assert "test 5000, validation 2000, train 10000; in the package" in lines["arithmetic"]


def test_listing_imports_neither_torch_nor_datasets() -> None:
    code = (
        "import sys; from loopscope.cli.listing import tasks; tasks(); "
        "sys.exit(bool({'torch', 'datasets', 'polars', 'tokenizers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
