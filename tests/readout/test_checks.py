"""A user's mistake gives one clear line, never a number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.readout import (
    affine_path,
    affine_path_from_states,
    nonlinear_path,
    nonlinear_path_from_states,
    option_path,
)

Z = torch.zeros(3, 4, dtype=torch.float64)
Y = [0, 1, 2]
NAN, INF = float("nan"), float("inf")


def _with(value):
    z = Z.clone()
    z[1, 2] = value
    return z


def _path():
    return affine_path(Z, Z, Y)


def _states(**changes):
    given = {
        "h": torch.zeros(3, 5),
        "h_plus": torch.zeros(3, 5),
        "head_weight": torch.zeros(4, 5),
        "head_bias": None,
        "targets": Y,
        **changes,
    }
    return affine_path_from_states(**given).slope


def _nonlinear(readout=lambda h: h, state=Z, displacement=Z, targets=Y, positions=None, **more):
    return nonlinear_path(readout, state, displacement, targets, positions, **more)


MISTAKES = {
    "nan-logit": (lambda: affine_path(_with(NAN), Z, Y), "NaN or infinite values in z0, 1 of them"),
    "infinite-logit": (lambda: affine_path(_with(INF), Z, Y), "NaN or infinite values in z0, 1 of them"),
    "nan-displacement": (lambda: affine_path(Z, _with(NAN), Y), "NaN or infinite values in v, 1 of them"),
    "empty-reference": (lambda: affine_path(Z[:0], Z[:0], []), "reference set is empty"),
    "empty-vocabulary": (lambda: affine_path(Z[:, :0], Z[:, :0], Y), "no columns"),
    "target-too-large": (lambda: affine_path(Z, Z, [0, 4, 1]), "target 4 is outside the vocabulary of 4"),
    "target-negative": (lambda: affine_path(Z, Z, [0, -1, 1]), "target -1 is outside"),
    "float-targets": (lambda: affine_path(Z, Z, [0.0, 1.0, 2.0]), "targets has dtype"),
    "no-targets": (lambda: affine_path(Z[0], Z[0], None), "targets is not a list of integers"),
    "too-few-targets": (lambda: affine_path(Z, Z, [0]), "each of the 3 rows"),
    "shapes": (lambda: affine_path(Z, Z[:, :3], Y), r"\(3, 4\) but v has shape \(3, 3\)"),
    "integer-logits": (lambda: affine_path(Z.long(), Z, Y), "floating-point"),
    "numpy-logits": (lambda: affine_path(np.zeros((3, 4)), Z, Y), "torch.as_tensor"),
    "unknown-implementation": (lambda: affine_path(Z, Z, Y, impl="fast"), "'moments', 'reference', 'autograd'"),
    "empty-example": (lambda: affine_path(Z, Z, Y, examples=[0, 0, 2]), "example 1 has no reference tokens"),
    "block": (lambda: affine_path(Z, Z, Y, block_tokens=0), "block_tokens=0"),
    "alpha-outside": (lambda: _path().value(-0.1), r"outside \[0, 1\]"),
    "alpha-nan": (lambda: _path().value([0.0, NAN]), r"nan is outside \[0, 1\]"),
    "alpha-empty": (lambda: _path().value([]), "non-empty"),
    "alpha-matrix": (lambda: _path().value([[0.0, 1.0]]), "one scale or a non-empty list"),
    "survey-off-grid": (lambda: _path().survey(21, [0.26]), "is not one of the 21 evenly spaced scales"),
    "survey-outside": (lambda: _path().survey(21, [1.05]), "is not one of the 21 evenly spaced scales"),
    "survey-of-one": (lambda: _path().survey(1), "at least 2"),
    "negative-example": (lambda: affine_path(Z, Z, Y, examples=[0, -1, 1]), "number the examples from 0"),
    "example-matrix": (lambda: affine_path(Z, Z, Y, examples=[[0], [1], [2]]), "each of the 3"),
    "float-examples": (lambda: affine_path(Z, Z, Y, examples=[0.0, 1.0, 2.0]), "give integers"),
    "cells": (lambda: _path().envelope(0), "cells"),
    "order-too-high": (lambda: _path().derivatives(0.5, 5), "from 0 to 4"),
    "nan-state": (lambda: _states(h=torch.full((3, 5), NAN)), "in h, 15 of them"),
    "nan-weight": (lambda: _states(head_weight=torch.full((4, 5), NAN)), "NaN or infinite values in the logits"),
    "minus-infinite-bias": (lambda: _states(head_bias=torch.full((4,), -INF)), "in head_bias, 4 of them"),
    "state-shapes": (lambda: _states(h_plus=torch.zeros(2, 5)), "must be the same"),
    "head-width": (lambda: _states(head_weight=torch.zeros(4, 6)), "the states have width 5"),
    "bias-shape": (lambda: _states(head_bias=torch.zeros(5)), "4 vocabulary entries"),
    "readout-dtype": (lambda: _states(dtype=torch.bfloat16), "use torch.float32 or torch.float64"),
    "overflowing-products": (
        lambda: _states(
            h=torch.full((3, 5), 1e30), head_weight=torch.full((4, 5), 1e30), dtype=torch.float32
        ),
        "wider dtype",
    ),
    "nonlinear-nan": (lambda: _nonlinear(state=_with(NAN)), "in state, 1 of them"),
    "nonlinear-nan-logits": (lambda: _nonlinear(readout=lambda h: torch.log(h - 1.0)), "readout's logits, 12 of"),
    "nonlinear-low-precision": (
        lambda: _nonlinear(state=Z.bfloat16(), displacement=Z.bfloat16()), "nonlinear_path_from_states"
    ),
    "nonlinear-mixed-precision": (lambda: _nonlinear(displacement=Z.float()), "nonlinear_path_from_states"),
    "nonlinear-logit-shape": (lambda: _nonlinear(readout=lambda h: h.sum(-1)), r"\[reference tokens, vocabulary\]"),
    "nonlinear-detached": (
        lambda: _nonlinear(readout=lambda h: h.detach() if not isinstance(h, torch.Tensor) else h).slope,
        "plain tensor",
    ),
    "nonlinear-implementation": (lambda: _nonlinear(impl="magic"), "'taylor', 'nested'"),
    "positions-shape": (lambda: _nonlinear(positions=torch.zeros(3, 3, dtype=torch.int64)), "2"),
    "positions-empty": (lambda: _nonlinear(positions=torch.zeros(0, 2, dtype=torch.int64)), "reference set is empty"),
    "positions-outside": (lambda: _nonlinear(positions=torch.tensor([[0, 4]])), "reach outside"),
    "from-states-dtype": (lambda: nonlinear_path_from_states(lambda h: h, Z, Z, Y, dtype=torch.float16), "float32"),
    "question-gap": (lambda: option_path(_path().per_token(), [0, 0, 2], [0, 1, 2]), "question 1 has no options"),
    "question-negative": (lambda: option_path(_path().per_token(), [0, -1, 1], [0, 1]), "number the questions from 0"),
    "correct-elsewhere": (lambda: option_path(_path().per_token(), [0, 0, 1], [2, 2]), "belongs to another question"),
    "correct-outside": (lambda: option_path(_path().per_token(), [0, 0, 1], [0, 3]), "3 scored sequences"),
    "correct-missing": (lambda: option_path(_path().per_token(), None, None), "correct is not a list of integers"),
    "option-path-of-logits": (lambda: option_path(Z), "path is a Tensor"),
}  # fmt: skip


def test_a_mistake_is_one_clear_line():
    for name, (mistake, message) in MISTAKES.items():
        with pytest.raises(LoopscopeError, match=message) as caught:
            mistake()
        assert "\n" not in str(caught.value), name


def test_scales_may_come_from_numpy():
    assert _path().value(np.linspace(0, 1, 5)).shape == (5,)
    assert _path().value(np.float32(0.5)).shape == ()
