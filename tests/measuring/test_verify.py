"""`verify` measures a sample again: a sound run passes, a forged number or another source does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from loopscope.api import measure_with as measure
from loopscope.measuring.verify import Named, measure_again
from loopscope.store import StoredRun, verify
from tests.forged import forge, with_column


@pytest.mark.parametrize(("family", "task"), [("ouro", "arithmetic-mc"), ("huginn", "arithmetic")])
def test_sound_run_replays(family: str, task: str, measured: Callable[..., StoredRun]) -> None:
    run = measured(family, task, limit=7, unit_size=4, tokens=True)
    result = verify(run.path, measure_again)
    assert result.findings == ()
    assert result.replayed


@pytest.mark.parametrize(("table", "column"), [("depths", "utility"), ("questions", "slope")])
def test_forged_numbers_are_found(table: str, column: str, measured: Callable[..., StoredRun]) -> None:
    run = measured("ouro", "arithmetic", limit=3)

    def shifted(data: pa.Table) -> pa.Table:
        return with_column(data, column, pc.add(data.column(column), 1e-2))

    for unit in run.units:
        forge(run, table, unit, shifted)
    assert verify(run.path).ok, "hashes were forged along"
    findings = verify(run.path, measure_again).findings
    assert [finding.kind for finding in findings] == ["replay"]
    assert f"{table}.{column}" in str(findings[0])


def test_other_weights_are_refused(checkpoint: Callable[[str], str], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("ouro"), folder)
    run = measure(str(folder), ["arithmetic"], output=tmp_path / "run", transitions=[1], limit=2, device="cpu")
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(weights))
    (finding,) = verify(run.path, measure_again).findings
    assert "not the sources of the run: the model is not the same (model.safetensors)" in str(finding)
    shutil.rmtree(folder)
    (finding,) = verify(run.path, measure_again).findings
    assert "cannot be measured again" in str(finding)
    assert verify(run.path, partial(measure_again, named=Named(model=checkpoint("ouro")))).findings == ()


def test_other_data_is_refused(checkpoint: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"prompt": "a", "solution": " b"}) + "\n")
    run = measure(checkpoint("ouro"), [str(path)], output=tmp_path / "run", transitions=[1], device="cpu")
    named = partial(measure_again, named=Named(tasks=(str(path),)))
    assert verify(run.path, named).ok
    path.write_text(json.dumps({"prompt": "a", "solution": " c"}) + "\n")
    assert "not the sources of the run: task.mine/all.data is not the same" in str(verify(run.path, named).findings[0])
    path.unlink()
    (finding,) = verify(run.path, named).findings
    assert "does not exist" in str(finding)
