"""Every example at a scale of its own agrees with evaluating all examples at that scale."""

import pytest
import torch

from loopscope.readout import affine_path, nonlinear_path, option_path

ALPHA = torch.tensor([0.0, 0.37, 1.0, 1e-9], dtype=torch.float64)


def _logits(seed: int, tokens: int = 11, vocabulary: int = 7):
    generator = torch.Generator().manual_seed(seed)
    z0 = 3 * torch.randn(tokens, vocabulary, generator=generator, dtype=torch.float64)
    v = torch.randn(tokens, vocabulary, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    examples = torch.tensor([0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3])
    return z0, v, targets, examples


def _expected(path, order):
    columns = [path.derivatives(float(alpha), order).stack[:, n] for n, alpha in enumerate(ALPHA)]
    return torch.stack(columns, 1)


@pytest.mark.parametrize("impl", ["moments", "reference"])
def test_affine(impl):
    path = affine_path(*_logits(0)[:3], examples=_logits(0)[3], impl=impl)
    torch.testing.assert_close(path.at(ALPHA, 4).stack, _expected(path, 4), rtol=1e-11, atol=1e-13)


def _nonlinear(examples):
    z0, v, targets, _ = _logits(2, tokens=8)
    mix = torch.randn(7, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    positions = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1], [3, 0], [3, 1]])

    def readout(state, where):
        return (torch.tanh(state) @ mix)[where[:, 0], where[:, 1]]

    return nonlinear_path(readout, z0.reshape(4, 2, 7), v.reshape(4, 2, 7), targets, positions, examples=examples)


def test_nonlinear_rows_of_different_examples():
    path = _nonlinear([0, 0, 1, 1, 2, 2, 3, 3])
    torch.testing.assert_close(path.at(ALPHA, 3).stack, _expected(path, 3), rtol=1e-10, atol=1e-12)


def test_tokens_that_share_a_row_take_turns():
    path = _nonlinear([0, 0, 1, 1, 2, 2, 3, 3]).per_token()
    alpha = torch.linspace(0.1, 0.9, 8, dtype=torch.float64)
    expected = torch.stack([path.derivatives(float(a), 2).stack[:, n] for n, a in enumerate(alpha)], 1)
    torch.testing.assert_close(path.at(alpha, 2).stack, expected, rtol=1e-10, atol=1e-12)


def test_options_share_their_questions_scale():
    z0, v, targets, examples = _logits(4)
    path = option_path(affine_path(z0, v, targets, examples=examples), [0, 0, 1, 1], [1, 2])
    alpha = torch.tensor([0.3, 0.8], dtype=torch.float64)
    expected = torch.stack([path.derivatives(float(a), 3).stack[:, n] for n, a in enumerate(alpha)], 1)
    torch.testing.assert_close(path.at(alpha, 3).stack, expected, rtol=1e-11, atol=1e-13)
