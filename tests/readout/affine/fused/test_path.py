"""Affine paths that take the fused kernels, and the tokens for which they do not do."""

from __future__ import annotations

import pytest
import torch

from loopscope.readout import affine_path_from_states
from loopscope.readout.affine.fused import launches as kernels
from loopscope.readout.affine.fused import path as module

AT = (0.0, 0.5, 1.0)
EXAMPLES = [0] * 4 + [1] * 5 + [2]


@pytest.fixture
def launches(monkeypatch):
    names = []

    def counted(kernel, *arguments, launch=kernels.launch, **options):
        names.append(kernel.fn.__name__)
        launch(kernel, *arguments, **options)

    monkeypatch.setattr(kernels, "launch", counted)
    return names


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(module, "DEFAULT", module.Tiles(16, 32, 16, 4, 1))


def test_every_scale_in_one_sweep(states, launches):
    made = states(10, 70, 32)
    few = affine_path_from_states(*made, dtype=torch.float32).survey(21, AT)
    launches.clear()
    every = affine_path_from_states(*made, dtype=torch.float32, every_scale=True).survey(21, AT)
    assert launches == ["sweep_kernel", "merge_kernel"]
    close(few.gains, every.gains)


def both(states, tokens=10, **options):
    made = states(tokens, 70, 32, **options)
    examples = EXAMPLES if tokens == 10 else list(range(tokens))
    return (
        affine_path_from_states(*made, examples=examples, dtype=torch.float32),
        affine_path_from_states(*made, examples=examples, dtype=torch.float64, impl="reference"),
    )


def close(found, true, size=3e-6):
    torch.testing.assert_close(found, true, rtol=0, atol=size * max(1.0, float(true.abs().max())))


def test_a_path_takes_them(states, launches):
    path, true = both(states)
    found, expected = path.survey(21, AT, spread=True), true.survey(21, AT, spread=True)
    assert launches == 2 * ["sweep_kernel", "merge_kernel"]  # once more for tokens that need every scale
    close(found.gains, expected.gains)
    close(found.derivatives, expected.derivatives)
    close(found.initial, expected.initial)
    close(found.spread, expected.spread)
    close(found.distributions.stacked(), expected.distributions.stacked())


def test_both_ends_are_read_once(states, launches):
    path, true = both(states)
    for name in ("slope", "curvature", "gain", "initial_utility", "divergence"):
        close(getattr(path, name), getattr(true, name))
    close(path.distributions.stacked(), true.distributions.stacked())
    assert launches == ["sweep_kernel", "merge_kernel"]


def test_a_single_example(states):
    made = states(6, 50, 16)
    path = affine_path_from_states(*made, dtype=torch.float32)
    true = affine_path_from_states(*made, dtype=torch.float64)
    for name in ("slope", "curvature", "gain", "initial_utility", "divergence"):
        close(getattr(path, name), getattr(true, name))
    close(path.at(0.3).value, true.at(0.3).value)
    assert path.survey().gains.shape == (21,)
    assert path.survey().spread is None


def test_own_scales(states, launches):
    path, true = both(states)
    scales = [0.0, 0.37, 1.0]
    close(path.at(scales).value, true.at(scales).value)
    assert path.at(scales).value[0] == 0.0
    assert launches[:2] == ["sweep_kernel", "merge_kernel"]


@pytest.mark.parametrize("options", [{"dtype": torch.float64}, {"dtype": torch.float32, "impl": "even"}])
def test_a_path_does_without(states, launches, options):
    affine_path_from_states(*states(4, 30, 16), **options).survey()
    assert launches == []


def test_odd_widths_do_without(states, launches):
    affine_path_from_states(*states(4, 30, 20), dtype=torch.float32).survey()
    assert launches == []


def test_a_fine_grid_does_without(states, launches):
    path, true = both(states)
    close(path.survey(65).gains, true.survey(65).gains)
    assert launches == []


def violent(states):
    """Two entries that change places over 300 nats: FP32 weights of the middle underflow at both ends."""
    h, h_plus, weight, bias, targets = states(6, 40, 16)
    weight[3], weight[7] = 0.0, 0.0
    weight[3, 0], weight[7, 1] = 150.0, 150.0
    h[:, :2], h_plus[:, :2] = 0.0, 0.0
    h[2, 0], h_plus[2, 1] = 2.0, 2.0
    return h, h_plus, weight, bias, targets


def test_a_violent_update_is_read_again(states):
    made = violent(states)
    path = affine_path_from_states(*made, examples=list(range(6)), dtype=torch.float32)
    true = affine_path_from_states(*made, examples=list(range(6)), dtype=torch.float64)
    found, expected = path.survey(21, AT), true.survey(21, AT)
    assert found.gains.isfinite().all()
    close(found.gains, expected.gains)
    close(found.derivatives, expected.derivatives)
    close(path.at([0.5] * 6).value, true.at([0.5] * 6).value)


def test_or_left_to_whoever_asked_not_to_wait(states):
    path = affine_path_from_states(*violent(states), examples=list(range(6)), dtype=torch.float32, check=False)
    found = path.survey(21, AT)
    lost = ~found.gains.isfinite().all(1)
    assert lost.tolist() == [False, False, True, False, False, False]
    assert found.derivatives[:, 2].isnan().all()
    assert found.initial[2].isnan()
