"""Whether a device has the specialised sweep of `chain`, and its launches."""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loopscope.kernels import language
from loopscope.kernels.language import launch

if TYPE_CHECKING:
    from loopscope.readout.affine.fused.path import Tiles

COLUMNS = 16
"""Columns that a thread reduces at a time."""
REGISTERS = 240
"""Of each thread that reduces."""
PENDING = 1
"""Products that are still running when the next is asked for."""


_refused: set[torch.device] = set()


def has_chain(device: torch.device) -> bool:
    """Whether the specialised sweep is worth a try there: on Hopper, where Triton has Gluon."""
    return device.type == "cuda" and device not in _refused and _is_hopper(device) and _has_gluon()


@functools.cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


@functools.cache
def _has_gluon() -> bool:
    try:
        _chain()
    except (ImportError, AttributeError):
        return False
    return True


def _chain() -> Any:
    return importlib.import_module("loopscope.readout.affine.fused.chain")


def try_chain(sums: Tensor, *arguments: Any) -> bool:
    """Launches it; False, once and for all, where this version of Triton does not compile it."""
    try:
        launch_chain(sums, *arguments)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        _refused.add(sums.device)
        reason = " ".join(str(error).split())[:200]
        warnings.warn(
            f"Triton {language.triton.__version__} does not compile the sweep for Hopper GPUs "
            f"({type(error).__name__}: {reason}); the one for all GPUs runs instead, slower",
            stacklevel=2,
        )
        return False
    return True


def launch_chain(
    sums: Tensor,
    states_SpD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_t: Tensor,
    labels: Tensor,
    growth: Tensor,
    own: Tensor,
    tiles_per_split: int,
    tiles: Tiles,
    constants: dict[str, Any],
) -> None:
    """The sums of some tokens into `sums` [updates, splits, slots, t]."""
    states, padded, width = states_SpD.shape
    hopper = importlib.import_module("triton.experimental.gluon.nvidia.hopper")
    gluon = importlib.import_module("triton.experimental.gluon.language")
    kind = {torch.bfloat16: gluon.bfloat16, torch.float16: gluon.float16}[weight_VD.dtype]

    def described(matrix: Tensor, rows: int) -> Any:
        block = [rows, tiles.width]
        return hopper.TensorDescriptor.from_tensor(matrix, block, gluon.NVMMASharedLayout.get_default_for(block, kind))

    launch(
        _chain().chain_kernel,
        (padded // tiles.tokens, sums.shape[1]),
        sums,
        described(states_SpD.view(states * padded, width), tiles.tokens),
        described(weight_VD, tiles.vocabulary),
        labels if bias_V is None else bias_V,
        targets_t,
        labels,
        growth,
        own,
        sums,
        targets_t.shape[0],
        padded,
        weight_VD.shape[0],
        width,
        tiles_per_split,
        warps=tiles.warps,
        fusion=True,
        STATES=states,
        HAS_BIAS=bias_V is not None,
        BLOCK_T=tiles.tokens,
        BLOCK_V=tiles.vocabulary,
        BLOCK_D=tiles.width,
        CHUNK=COLUMNS,
        STAGES=tiles.stages,
        PENDING=PENDING,
        REGISTERS=REGISTERS,
        **constants,
    )
