"""Which implementation runs."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.kernels import choice
from loopscope.kernels.choice import implementation, takes_kernel

X = torch.zeros(2, 4, dtype=torch.bfloat16)


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def test_kernels_are_for_inference_in_low_precision_where_they_are_chosen(interpreted):
    with torch.no_grad():
        assert not takes_kernel(X), "a CPU takes the plain code"
        assert takes_kernel(X, "triton")
        with implementation("triton"):
            assert takes_kernel(X)
            assert not takes_kernel(X, "reference")
            assert not takes_kernel(X.float())
            assert not takes_kernel(X[:0])
            with torch.enable_grad():
                assert not takes_kernel(X)
            with torch.autograd.forward_ad.dual_level():
                assert not takes_kernel(X)
        assert not takes_kernel(X)


def test_kernels_without_a_gpu_are_one_line(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with torch.no_grad(), pytest.raises(LoopscopeError, match=r"need a GPU.*TRITON_INTERPRET=1"):
        takes_kernel(X, "triton")


@pytest.mark.parametrize(("value", "answer"), [("triton", True), ("reference", False), ("auto", False), ("cuda", None)])
def test_the_environment_decides_for_a_process(monkeypatch, interpreted, value, answer):
    monkeypatch.setenv(choice.VARIABLE, value)
    choice._from_environment.cache_clear()
    with torch.no_grad():
        if answer is None:
            with pytest.raises(LoopscopeError, match="LOOPSCOPE_KERNELS is 'cuda'; choose one of auto"):
                takes_kernel(X)
        else:
            assert takes_kernel(X) is answer
    choice._from_environment.cache_clear()


def test_a_failing_compiler_is_reported_once_and_done_without(monkeypatch):
    def fails(*arguments):
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    broken = SimpleNamespace(probe=fails)
    monkeypatch.setitem(sys.modules, "loopscope.kernels.language", broken)
    choice._works.cache_clear()
    with pytest.warns(UserWarning, match=r"cannot compile for cpu \(RuntimeError: Failed to find C compiler. Please"):
        assert not choice._works(torch.device("cpu"))
    assert not choice._works(torch.device("cpu"))
    choice._works.cache_clear()


def test_without_triton_the_plain_code_runs(tmp_path):
    """As on a machine without it: everything imports, `auto` goes on, only a forced kernel says what is missing."""
    (tmp_path / "triton.py").write_text("raise ImportError('none for this platform')")
    code = (
        "import torch; from loopscope.kernels import layers\n"
        "from loopscope.kernels import choice\n"
        "from loopscope.models.load import load_model; from loopscope.models.batch import Batch\n"
        "model = load_model('toy-ouro', dtype='bfloat16')\n"
        "assert model.states(Batch.from_rows([[1, 2, 3]]), [1])[1].isfinite().all()\n"
        "with choice.implementation('triton'): model.states(Batch.from_rows([[1, 2, 3]]), [1])"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stderr.splitlines()[-1].endswith("not installed: pip install triton"), done.stderr
