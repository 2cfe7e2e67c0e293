"""Devices and dtypes by name, on machines with and without accelerators."""

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.models import load as placement
from loopscope.models.load import find_device, find_dtype


@pytest.fixture
def machine(monkeypatch):
    def pretend(cuda=0, mps=False):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


@pytest.mark.parametrize(
    ("cuda", "mps", "found"), [(2, False, "cuda"), (1, True, "cuda"), (0, True, "mps"), (0, False, "cpu")]
)
def test_auto_takes_the_best_there_is(machine, cuda, mps, found):
    machine(cuda, mps)
    assert find_device("auto").type == found


@pytest.mark.parametrize(("count", "name"), [(0, "cuda"), (1, "cuda:1")])
def test_cuda_device_beyond_the_last(machine, count, name):
    machine(count)
    with pytest.raises(LoopscopeError, match=f"this machine has {count}"):
        find_device(name)


def test_mps_only_where_it_is(machine):
    machine(mps=True)
    assert find_device("mps").type == "mps"
    machine(mps=False)
    with pytest.raises(LoopscopeError, match="mps"):
        find_device("mps")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "meta", "mkldnn", "cuda:-1", "cuda:" + "9" * 5000])
def test_name_that_is_no_device(name):
    with pytest.raises(LoopscopeError, match="there is no device") as caught:
        find_device(name)
    assert len(str(caught.value)) < 300


def test_every_dtype_by_name_and_object():
    for name, dtype in placement.DTYPES.items():
        assert find_dtype(name) is find_dtype(dtype) is find_dtype(name.upper()) is dtype
