"""The CPU row: the geometry of an affine head, and A, Q and φ''' through Huginn's coda and head by Taylor mode.

The second is compared with a Hessian–vector product, which gives A and Q alone, and with one forward pass of the same
readout. Weights are random, two blocks of a fifth of Huginn's width.

Shapes: B rows, S positions, D hidden width, T reference tokens, V vocabulary entries.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import loopscope as ls
from geometry import against_paper, random_update
from loopscope.kernels.choice import implementation
from loopscope.models.registry import find_published
from loopscope.readout import autograd_coefficients, nonlinear_path_from_states
from timing import OURS, Row, race

FORWARD = "one forward pass"
HVP = "Hessian–vector product, A and Q only"
STEP, SPREAD = 0.3, 4.0
"""The displacement over the state; the standard deviation of the logits."""
NARROW = {"n_embd": 1056, "n_heads": 11, "num_key_value_heads": 11, "intermediate_size": 3584}
NARROW |= {"n_layers": 3, "n_layers_in_prelude": 0, "n_layers_in_recurrent_block": 1}


def rows(device: torch.device, quick: bool) -> list[Row]:
    """Both."""
    shape, chunk = ((9, 32, 999), 4) if quick else ((256, 2048, 49_152), 128)
    repeats = 1 if quick else 5
    geometry = against_paper("cpu:geometry", random_update(shape, device), chunk, repeats)
    return [geometry, huginn_readout(device, quick, min(3, repeats))]


def huginn_readout(device: torch.device, quick: bool, repeats: int) -> Row:
    """Two rows of 32 positions, nearly all of them reference tokens."""
    model: Any = ls.load_model("toy-huginn", device="cpu", dtype="bfloat16") if quick else _narrow_huginn()
    width, vocabulary, positions = model.lm_head.in_features, model.lm_head.out_features, 5 if quick else 32
    torch.manual_seed(3)
    with torch.no_grad():
        model.lm_head.weight.normal_(0.0, SPREAD / width**0.5)
    model.prepare()
    h_BSD = torch.randn(2, positions, width).bfloat16()
    h_plus_BSD = (h_BSD.float() + STEP * torch.randn(h_BSD.shape)).bfloat16()
    positions_T2 = torch.cartesian_prod(torch.arange(2), torch.arange(1, positions))
    targets_T = torch.randint(vocabulary, (len(positions_T2),))

    def taylor() -> Tensor:
        path = nonlinear_path_from_states(
            model.body_and_head(torch.float32),
            h_BSD,
            h_plus_BSD,
            targets_T,
            positions_T2,
            examples=positions_T2[:, 0],
            dtype=torch.float32,
        )
        return path.derivatives(0.0, 3).stack

    def utility(state_BSD: Tensor) -> Tensor:
        logits_TV = model.readout(state_BSD, positions_T2, torch.float32)
        return torch.log_softmax(logits_TV, -1).gather(1, targets_T[:, None])[:, 0].reshape(2, -1).mean(1)

    def forward() -> None:
        model.readout(h_BSD.float(), positions_T2, torch.float32)

    def hessian_vector() -> Any:
        state_BSD = h_BSD.float()
        with implementation("reference"):
            return autograd_coefficients(utility, state_BSD, h_plus_BSD.float() - state_BSD, torch.arange(2), 2)

    values = race(device, {OURS: taylor, FORWARD: forward, HVP: hessian_vector}, repeats)
    ours, reference = taylor(), hessian_vector()
    pairs = {"A": (ours[1], reference.slope), "curvature": (ours[2], reference.curvature)}
    figures = {
        f"relative_difference_{name}": float((one - other).abs().max() / other.abs().max())
        for name, (one, other) in pairs.items()
    }
    size = {"tokens": len(positions_T2), "hidden": width, "vocabulary": vocabulary}
    return Row("cpu:huginn", "A, Q and φ''' through Huginn's coda and head in FP32", size, values, figures=figures)


def _narrow_huginn() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        huginn = find_published("huginn-0125")
        assert huginn is not None
        (Path(folder) / "config.json").write_text(json.dumps(dict(huginn.config) | NARROW))
        return ls.load_model(folder, device="cpu", dtype="bfloat16", model_args={"random_weights": True})
