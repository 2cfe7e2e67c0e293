"""Every family holds what `ls.check` asks of a user's model: padding, rows, causality, float64, derivatives."""

from pathlib import Path

import pytest

from loopscope.measuring.model_check import checked

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES = sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir())


@pytest.mark.parametrize("family", [*FAMILIES, "ifm_p1_huginn", "ifm_p1_split_hl", "ifm_p1_moe_middle", "attractor"])
def test_a_family_passes_every_check(family, golden_model):
    found = checked(golden_model(family))
    assert found.passed, str(found)
