import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def paths() -> ModuleType:
    """The neighbouring module with cases and their truth (tests are no package)."""
    spec = importlib.util.spec_from_file_location("certified_tests_paths", Path(__file__).parent / "paths.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
