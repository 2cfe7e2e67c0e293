"""Every example at a scale of its own agrees with evaluating all examples at that scale."""

import pytest
import torch

from loopscope.readout import affine_path, nonlinear_path, option_path

EXAMPLES = [0, 0, 1, 1, 2, 2, 3, 3]
POSITIONS = torch.tensor([[row, place] for row in range(4) for place in range(2)])


def _logits():
    g = torch.Generator().manual_seed(2)
    z0, v = (size * torch.randn(8, 7, generator=g, dtype=torch.float64) for size in (3.0, 1.0))
    return z0, v, torch.randint(7, (8,), generator=g), torch.randn(7, 7, generator=g, dtype=torch.float64)


def _affine(impl):
    return affine_path(*_logits()[:3], examples=EXAMPLES, impl=impl)


def _nonlinear():
    z0, v, targets, mix = _logits()

    def readout(state, where):
        return (torch.tanh(state) @ mix)[where[:, 0], where[:, 1]]

    states = z0.reshape(4, 2, 7), v.reshape(4, 2, 7)
    return nonlinear_path(readout, *states, targets, POSITIONS, examples=EXAMPLES)


PATHS = {
    "moments": lambda: _affine("moments"),
    "reference": lambda: _affine("reference"),
    "rows of different examples": _nonlinear,
    "tokens that share a row": lambda: _nonlinear().per_token(),
    "options": lambda: option_path(_affine("auto"), [0, 0, 1, 1], [1, 2]),
}


@pytest.mark.parametrize("name", PATHS)
def test_each_example_at_its_own_scale(name):
    path = PATHS[name]()
    scales = torch.tensor([0.0, 0.37, 1.0, 1e-9, 0.2, 0.5, 0.8, 0.9], dtype=torch.float64)[: path.examples]
    expected = [path.derivatives(float(alpha), 3).stack[:, n] for n, alpha in enumerate(scales)]
    torch.testing.assert_close(path.at(scales, 3).stack, torch.stack(expected, 1), rtol=1e-10, atol=1e-12)
