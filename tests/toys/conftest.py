import pytest
from tokenizers import Tokenizer

from loopscope.models.registry import EMBEDDED
from loopscope.toys.recipe import Mixture, Recipe, huginn_config, ouro_config

SMALL = Mixture(batch_tokens=1216, shard_problems=24, widths=(144, 224, 608))


@pytest.fixture(scope="session")
def tokenizer():
    """What `build_tokenizer` builds, which takes seconds; test_embedded.py compares the two."""
    return Tokenizer.from_file(str(EMBEDDED / "toy-ouro" / "tokenizer.json"))


@pytest.fixture(scope="session")
def recipes():
    """Both families, tiny."""
    ouro = Recipe("tiny-ouro", "ouro", ouro_config(32, 64, 2, 2, 3), minutes=0.02, mixture=SMALL, warmup_steps=2)
    huginn = huginn_config(32, 64, (1, 1, 1), 2, 3, 2)
    return {
        "ouro": ouro,
        "huginn": Recipe(
            "tiny-huginn", "huginn", huginn, minutes=0.02, mixture=SMALL, warmup_steps=2, backprop_steps=2
        ),
    }
