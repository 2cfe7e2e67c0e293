"""The monitor: its numbers are those of `loopscope measure`, and the training does not notice it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import loopscope as ls
from loopscope.store import StoredRun


def trained(model, steps, monitor=None, *, seed=1):
    """A training that draws from every global stream; the monitor is asked where gradients are there."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(1, steps + 1):
        width = random.randint(4, 9) + int(np.random.randint(0, 3))  # noqa: NPY002
        loss = model.loss(torch.randint(0, model.vocabulary_size, (4, width)))
        loss.backward()
        if monitor is not None:
            monitor.step(step)
        optimiser.step()
        optimiser.zero_grad()
    return optimiser


def means_of(run: StoredRun, transition: int) -> dict[str, float]:
    """What a run says of an update, in the words of a monitor."""
    rows = StoredRun(run.path).read("questions").filter(transition=transition).sort("row")
    gain, slope, quadratic = (rows[name].to_numpy() for name in ("gain", "slope", "quadratic"))
    quarter = np.stack(rows["grid_gain"].to_list())[:, 5]
    outcome, best = rows["outcome"].to_numpy(), rows["quadratic_gain"].to_numpy()
    found = {
        "gain": gain,
        "slope": slope,
        "quadratic": quadratic,
        "accumulated_curvature": gain - slope,
        "utility_before": rows["utility_before"].to_numpy(),
        "utility_after": rows["utility_after"].to_numpy(),
        "quadratic_scale": rows["quadratic_scale"].to_numpy(),
        "quarter_gain": quarter,
        "quadratic_gain": best,
        "progressing": outcome == ls.Outcome.PROGRESSING,
        "neutral": outcome == ls.Outcome.NEUTRAL,
        "directional": outcome == ls.Outcome.DIRECTIONAL_FAILURE,
        "finite_step": outcome == ls.Outcome.FINITE_STEP_FAILURE,
        "harmful": gain < 0,
        "sign_slope": (slope > 0) == (gain > 0),
        "sign_quadratic": (slope + quadratic > 0) == (gain > 0),
        "share": (slope > 0)[gain < 0],
        "quarter_recovery": quarter[(gain < 0) & (slope > 0)] > 0,
        "quadratic_recovery": best[(gain < 0) & (slope > 0)] > 0,
    }
    return {name: float(np.mean(values)) for name, values in found.items() if len(values)}


@pytest.mark.parametrize("affine", [True, False])
def test_its_numbers_are_those_of_measure_for_the_saved_checkpoint(tmp_path, small, task, affine):
    model = small(affine=affine)
    monitor = ls.Monitor(model, task, transitions=[1, 2, 6], depths=[4], every=10)
    optimiser = trained(model, 30)
    record = monitor.measure(30)
    torch.save(model.state_dict(), tmp_path / "checkpoint.pt")
    trained(model, 2)  # goes on: what was found is of the checkpoint

    again = small(affine=affine)
    again.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    run = ls.measure(again, task, transitions=[1, 2, 6], depths=[4], output=tmp_path / "run")
    assert [row["transition"] for row in record.updates] == [1, 2, 6]
    for row in record.updates:
        expected = means_of(run, row["transition"])
        assert row["questions"] == 12
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-9)
        assert row["gain_se"] == pytest.approx(
            StoredRun(run.path).read("questions").filter(transition=row["transition"])["gain"].std() / 12**0.5, rel=1e-6
        )
    stored = StoredRun(run.path).read("depths")
    assert [row["depth"] for row in record.depths] == [1, 2, 3, 4, 6, 7]
    for row in record.depths:
        assert row["utility"] == pytest.approx(stored.filter(depth=row["depth"])["utility"].mean(), abs=1e-9)
    assert optimiser.param_groups[0]["lr"] == 1e-2


def test_a_training_of_200_steps_ends_with_identical_weights(small, task, tmp_path):
    plain, watched = small(), small()
    alone = trained(plain, 200)
    streams = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    monitor = ls.Monitor(watched, task, transitions=[1, 2, 3], every=10, log=tmp_path / "monitor.jsonl")
    beside = trained(watched, 200, monitor)
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, watched.state_dict()[name]), name
    for one, other in zip(alone.state.values(), beside.state.values(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in ("exp_avg", "exp_avg_sq", "step"))
    assert torch.equal(streams[0], torch.get_rng_state())
    assert streams[1] == random.getstate()
    assert streams[2] == np.random.get_state()[1].tolist()  # noqa: NPY002
    assert len((tmp_path / "monitor.jsonl").read_text().splitlines()) == 1 + 20 * (4 + 3 + 1)
