"""The top of the package: light to import, and its names mean what the documentation says."""

import subprocess
import sys

import pytest

import loopscope as ls


@pytest.mark.parametrize("module", ["loopscope", "loopscope.cli.measure"])
def test_importing_the_package_or_the_flags_of_measure_loads_nothing_heavy(module: str):
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'transformers', 'numpy', 'polars'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ls.__all__)
def test_every_public_name_is_there(name: str):
    first = getattr(ls, name)
    assert first is not None
    assert callable(getattr(ls, name)) is callable(first), "a module of this name hides it once it is imported"


def test_measure_stays_a_function_after_the_package_behind_it_was_imported(tmp_path):
    import loopscope.measuring.run  # noqa: F401 - must not hide the function

    for turn in ("first", "second"):
        run = ls.measure(
            "toy-ouro",
            tasks=["arithmetic"],
            depths=[1, 2],
            output=tmp_path / turn,
            limit=2,
            level="quick",
            device="cpu",
        )
        assert run.finished
        assert isinstance(run, ls.Run)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        ls.no_such_name  # noqa: B018
