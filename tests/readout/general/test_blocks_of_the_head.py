"""Derivatives with logits of a block of the vocabulary at a time, on a CPU, against whole rows in float64."""

from __future__ import annotations

import pytest
import torch

from loopscope.kernels.choice import implementation
from loopscope.models.load import load_model
from loopscope.readout import nonlinear_path_from_states
from loopscope.readout.general import token_derivatives as module
from loopscope.readout.general.token_derivatives import head_derivatives, token_derivatives


def made(tokens, vocabulary=1500, width=24, n=4, scale=2.0, seed=0):
    chance = torch.Generator().manual_seed(seed)
    c_nTD = torch.randn(n, tokens, width, generator=chance)
    weight_VD = scale * torch.randn(vocabulary, width, generator=chance) / width**0.5
    return c_nTD, weight_VD, torch.randint(vocabulary, (tokens,), generator=chance)


def exact(c_nTD, weight_VD, targets_T):
    return token_derivatives(c_nTD.double() @ weight_VD.double().T, targets_T, "reference")


@pytest.mark.parametrize(("n", "scale"), [(1, 2.0), (2, 12.0), (3, 0.1), (4, 0.1), (4, 2.0), (4, 12.0)])
def test_against_whole_rows_in_float64(n, scale):
    given = made(70, n=n, scale=scale)
    found, true = head_derivatives(*given), exact(*given)
    plain = token_derivatives(given[0] @ given[1].T, given[2], "reference")
    for ours, by_rows, row in zip(found, plain, true, strict=True):
        off, rounding = (ours - row).abs().max(), (by_rows - row).abs().max()
        assert float(off) <= 2.0 * float(rounding) + 1e-9


def test_logits_that_are_there_already():
    """The sums lose nothing that float32 logits have."""
    c_nTD, weight_VD, targets_T = made(70)
    c_nTV = c_nTD @ weight_VD.T
    found, true = token_derivatives(c_nTV, targets_T), token_derivatives(c_nTV, targets_T, "reference")
    for ours, row in zip(found, true, strict=True):
        torch.testing.assert_close(ours, row, rtol=1e-10, atol=1e-12 * float(row.abs().max()))


def test_a_certain_reference_keeps_its_digits():
    c_nTV = 0.3 * torch.randn(4, 5, 900, generator=torch.Generator().manual_seed(2))
    targets_T = torch.arange(5)
    c_nTV[0, targets_T, targets_T] = 50.0
    found, true = token_derivatives(c_nTV, targets_T), token_derivatives(c_nTV, targets_T, "reference")
    assert float(true[0].max()) > -1e-18
    torch.testing.assert_close(found, true, rtol=1e-9, atol=0.0)


def test_no_digit_depends_on_threads_or_on_other_tokens():
    c_nTD, weight_VD, targets_T = made(130, vocabulary=20_000)
    c_nTV = c_nTD @ weight_VD.T
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(token_derivatives(c_nTV, targets_T))
    torch.set_num_threads(before)
    assert torch.equal(*found)
    torch.testing.assert_close(token_derivatives(c_nTV[:, 3:4], targets_T[3:4]), found[0][:, 3:4], rtol=1e-13, atol=0)


@pytest.mark.parametrize("worst", [-torch.inf, 2e3, torch.nan, torch.inf])
def test_what_blocks_cannot_take_is_read_in_whole_rows(worst):
    """Nothing there, a gap in which weights overflow, and what is no number."""
    c_nTV = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(1))
    c_nTV[0, 2, 7] = worst
    targets_T = torch.tensor([1, 2, 3, 4])
    found, true = token_derivatives(c_nTV, targets_T), token_derivatives(c_nTV, targets_T, "reference")
    torch.testing.assert_close(found, true, rtol=1e-10, atol=1e-12, equal_nan=True)
    assert bool(found[:, 2].isfinite().all()) == (worst != torch.inf and worst == worst)


def test_models_say_their_matrix(monkeypatch):
    """A path through toy-huginn takes it, and finds what whole rows say."""
    model, taken = load_model("toy-huginn", dtype="float32"), []
    chance = torch.Generator().manual_seed(4)
    h, h_plus = (torch.randn(2, 6, model.hidden_size, generator=chance) for _ in range(2))
    positions = torch.tensor([[0, 2], [0, 4], [1, 3]])
    head = module.head_derivatives

    def counted(*arguments):
        taken.append(arguments)
        return head(*arguments)

    monkeypatch.setattr("loopscope.readout.general.path.head_derivatives", counted)

    def derivatives(dtype):
        return nonlinear_path_from_states(
            model.body_and_head(dtype), h, h_plus, [3, 5, 7], positions, examples=[0, 1, 2], dtype=dtype, impl="taylor"
        ).derivatives(0.0, 3)

    with torch.no_grad():
        found = derivatives(torch.float32).stack
        assert len(taken) == 1
        with implementation("reference"):
            plain = derivatives(torch.float32).stack
        true = derivatives(torch.float64).stack
    assert len(taken) == 1
    for ours, by_rows, row in zip(found, plain, true, strict=True):
        assert float((ours - row).abs().max()) <= 2.0 * float((by_rows - row).abs().max()) + 1e-6
