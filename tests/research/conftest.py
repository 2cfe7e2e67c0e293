import pytest
from tokenizers import Tokenizer

from loopscope.models.registry import EMBEDDED


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer.from_file(str(EMBEDDED / "toy-ouro" / "tokenizer.json"))
