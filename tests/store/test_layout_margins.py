"""Which figure applies: the coarser arithmetic, unless the states do not depend on the layout."""

from __future__ import annotations

import pytest

from loopscope.models.families.detect import FAMILIES
from loopscope.store import LAYOUT_MARGINS, Dtypes, layout_margin
from loopscope.store.layout_margins import STEADY


@pytest.mark.parametrize(
    ("changes", "family", "arithmetic"),
    [
        ({"device": "NVIDIA A100-SXM4-80GB"}, "ouro", "bfloat16"),
        ({"device": "NVIDIA H200"}, "ouro", "float32"),
        ({"device": "NVIDIA H200", "settings": {"share_context": True}}, "ouro", "bfloat16"),
        ({"device": "cpu (x86_64)"}, "ouro", "float32"),
        ({"device": "cpu (x86_64)"}, "mine", "bfloat16"),
        ({"device": "cpu (x86_64)", "settings": {"share_context": True}}, "ouro", "bfloat16"),
        ({"device": "NVIDIA H200", "dtypes": Dtypes(states="float64", readout="float64")}, "ouro", "float64"),
        ({"device": "NVIDIA A100", "dtypes": Dtypes(states="float8", readout="float32")}, "ouro", "bfloat16"),
    ],
)
def test_the_coarser_arithmetic_that_depends_on_the_layout_counts(make_manifest, changes, family, arithmetic):
    manifest = make_manifest(**{"dtypes": Dtypes(states="bfloat16", readout="float32"), **changes})
    manifest = manifest.model_copy(update={"model": manifest.model.model_copy(update={"family": family})})
    assert layout_margin(manifest) == LAYOUT_MARGINS[arithmetic]


def test_families_that_are_said_to_be_steady_are_loopscopes_own():
    assert set(FAMILIES) >= STEADY
