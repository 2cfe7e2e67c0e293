"""The table `trace`: every column against its formula from the states and logits of a plain walk, in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from loopscope.api import measure
from loopscope.control import signals
from loopscope.models import Batch, load_model, load_tokenizer
from loopscope.models.walk import Walk, read
from loopscope.readout import affine_path_from_states
from loopscope.store import verify
from loopscope.tasks.encoding import encode_row
from loopscope.tasks.load import load_task

DEEPEST, LENS = 4, 3
CASES = [(family, task) for family in ("ouro", "huginn") for task in ("arithmetic", "arithmetic-mc")]


class Plain:
    """One sequence after the other, unpadded, in float64: states, logits, gate, and the formulas of the signals."""

    def __init__(self, folder: str, task: str, count: int) -> None:
        self.model: Any = load_model(folder, dtype="float64")
        loaded = load_task(task, limit=count)
        tokenizer = load_tokenizer(folder)
        self.examples = [encode_row(tokenizer, row, loaded.encoding) for row in loaded.rows]

    def rows(self) -> pl.DataFrame:
        """The expected rows, NaN for null."""
        found = []
        for row, example in enumerate(self.examples):
            for option, sequence in enumerate(example.sequences):
                batch = Batch.from_rows([sequence.token_ids], source_rows=[example.source_row])
                found += self._sequence(batch, sequence, {"row": row, "option": option})
        return pl.DataFrame(found)

    def _sequence(self, batch: Batch, sequence: Any, key: dict[str, int]) -> list[dict[str, Any]]:
        places, targets = torch.tensor(sequence.positions), torch.tensor(sequence.targets)
        walk, found = Walk.of(self.model, batch), []
        states = [walk.state[0, places]]
        logits: list[torch.Tensor | None] = [None]
        for depth in range(1, DEEPEST + 1):
            walk.advance()
            states.append(walk.state[0, places])
            z = read(self.model, walk.state, None, torch.float64, walk.context)[0, places]
            logits.append(z)
            gate = getattr(self.model, "exit_gate", None)
            told = signals.LiveSignals(
                depth,
                signals.States(*states[::-1][:3]),
                logits.__getitem__,
                None if gate is None else torch.sigmoid(gate.logits(walk.state, torch.float64)[0, places]),
            )
            log_p = z.log_softmax(1)
            own = log_p.gather(1, targets[:, None])[:, 0]
            order = z.argsort(dim=1, descending=True, stable=True)
            before = logits[depth - 1]
            v_y = torch.full_like(own, torch.nan) if before is None else (z - before).gather(1, targets[:, None])[:, 0]
            found += [
                {
                    **key,
                    "depth": depth,
                    "token": token,
                    "position": int(places[token]),
                    "token_id": int(targets[token]),
                    **{name: float(told(name)[token]) for name in (*signals.SIGNALS, "gate")},
                    "log_prob": float(own[token]),
                    "v_reference": float(v_y[token]),
                    "lens_ids": order[token, :LENS].tolist(),
                    "lens_probs": log_p[token].exp()[order[token, :LENS]].tolist(),
                    "rank": order[token].tolist().index(int(targets[token])) + 1,
                }
                for token in range(len(places))
            ]
        return found


def close(found: pl.Series, expected: pl.Series, tolerance: float = 2e-6) -> None:
    """Equal to rounding to float32; null where NaN is expected."""
    assert found.is_null().to_list() == expected.is_nan().to_list(), found.name
    a, b = found.fill_null(0.0).to_numpy(), expected.fill_nan(0.0).to_numpy()
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=found.name)


@pytest.mark.parametrize(("family", "task"), CASES)
def test_every_column_follows_its_formula(
    family: str, task: str, checkpoint: Callable[[str], str], tmp_path: Path
) -> None:
    run = measure(
        checkpoint(family), task, output=tmp_path / "run", limit=3, transitions=[2], depths=[DEEPEST], dtype="float64",
        readout_dtype="float64", lens=LENS,
    )  # fmt: skip
    key = ["row", "depth", "option", "token"]
    found = run.trace.collect()
    assert found.select(key).rows() == sorted(found.select(key).rows())
    expected = Plain(checkpoint(family), task, 3).rows().sort(key)
    exact = [*key, "position", "token_id", "top_id", "lens_ids", "rank"]
    for name in exact:
        assert found[name].to_list() == [int(x) if name == "top_id" else x for x in expected[name].to_list()], name
    for name in sorted(set(expected.columns) - set(exact) - {"lens_probs"}):
        close(found[name], expected[name])
    np.testing.assert_allclose(np.stack(found["lens_probs"]), np.stack(expected["lens_probs"]), rtol=2e-6)
    assert verify(run).ok


def test_gains_are_those_of_the_path_and_null_elsewhere(checkpoint: Callable[[str], str], tmp_path: Path) -> None:
    folder = checkpoint("ouro")
    run = measure(folder, "arithmetic", output=tmp_path / "run", limit=2, transitions=[2], depths=[4], trace=True)
    found = run.trace.collect()
    assert found["lens_ids"].null_count() == found["rank"].null_count() == found.height
    model: Any = load_model(folder, dtype="float64")
    loaded = load_task("arithmetic", limit=2)
    sequence = encode_row(load_tokenizer(folder), loaded.rows[1], loaded.encoding).sequences[0]
    states = model.states(Batch.from_rows([sequence.token_ids]), [2, 3])
    places = torch.tensor(sequence.positions)
    h, h_plus = states[2][0, places], states[3][0, places]
    path = affine_path_from_states(h, h_plus, *model.head, torch.tensor(sequence.targets)).per_token()
    expected = path.at_scales([0.25, 0.5, 0.75], 0)[0].numpy()
    own = found.filter(pl.col("row") == 1, pl.col("depth") == 3)
    np.testing.assert_allclose(own.select("gain_25", "gain_50", "gain_75").to_numpy(), expected, atol=2e-5)
    others = found.filter(pl.col("depth") != 3)
    assert others.select(pl.col("^gain_.*$").is_null().all()).row(0) == (True, True, True)
    # A and Q of the token follow from the logits of the two depths.
    _, slope, curvature = path.at_scales([0.0], 2)[..., 0].numpy()
    np.testing.assert_allclose((own["v_reference"] - own["mean_v"]).to_numpy(), slope, atol=2e-5)
    np.testing.assert_allclose(-own["var_v"].to_numpy(), curvature, atol=2e-5, rtol=2e-5)
