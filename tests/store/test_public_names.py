"""What `loopscope.store` offers, and the cost of importing it."""

import subprocess
import sys

import pytest

import loopscope.store as store


def test_importing_the_store_brings_in_no_heavy_library() -> None:
    heavy = ["torch", "numpy", "pyarrow", "polars", "pydantic"]
    script = f"import sys, loopscope.store; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_resolves_to_the_same_thing_twice() -> None:
    for name in store.__all__:
        first = getattr(store, name)
        assert not isinstance(first, type(store)), f"{name} is a module"
        assert getattr(store, name) is first
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        store.nonsense  # noqa: B018
