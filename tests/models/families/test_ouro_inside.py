"""An Ouro read inside its stack says after t loops what Ouro says after t + 1, and changes along another line."""

import pytest
import torch

from loopscope.api import measure_with as measure
from loopscope.cli.listing import model_rows
from loopscope.models.batch import Batch
from loopscope.models.load import load_model

ROWS = [[5, 6, 7, 8, 9], [11, 12, 13]]


@pytest.fixture(scope="module")
def ouro():
    return load_model("toy-ouro", dtype="float64")


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_it_reads_what_ouro_reads_one_loop_later(ouro, layer):
    inside, batch = load_model("toy-ouro", model_args={"inside": layer}, dtype="float64"), Batch.from_rows(ROWS)
    with torch.no_grad():
        outer, inner = ouro.states(batch, [1, 4, 5]), inside.states(batch, [0, 3, 4])
        valid = batch.attention_mask
        for depth in (0, 3, 4):
            expected = ouro.readout(outer[depth + 1])[valid]
            torch.testing.assert_close(inside.readout(inner[depth])[valid], expected, rtol=1e-10, atol=1e-10)
    assert inside.trained_depth == ouro.trained_depth - 1
    assert inside.head is None


def test_it_is_listed_and_measured_by_its_name(tmp_path):
    (row,) = [row for row in model_rows() if row["name"] == "toy-ouro:inside=3"]
    assert (row["trained_depth"], row["kind"]) == (3, "embedded")
    given = {"tasks": "stories", "limit": 2, "dtype": "float32", "scalar_checks": 0}
    inside = measure("toy-ouro", model_args={"inside": 3}, transitions=[3], output=tmp_path / "inside", **given)
    outside = measure("toy-ouro", transitions=[4], output=tmp_path / "outside", **given)
    assert inside.manifest.model.trained_depth == 3
    for column in ("utility_before", "gain"):
        assert inside.records[column].to_list() == pytest.approx(outside.records[column].to_list(), abs=1e-5)
    assert inside.records["slope"].to_list() != pytest.approx(outside.records["slope"].to_list(), abs=1e-5)
