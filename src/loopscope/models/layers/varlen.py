"""Attention of sequences of any lengths side by side, without padding: torch's kernel, or flash-attention's.

Both are the same fused kernel for 16-bit queries on a GPU, and both align a part's last position with its last key. A
part whose keys are elsewhere in the row, such as what it shares with others, goes to `shared_attention`; without Triton
it has them gathered first. `attention` has the plain code.

Shapes: N positions, T keys of all parts, H heads, K key-value heads, P head width.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.kernels.choice import chosen, is_differentiating, takes_kernel
from loopscope.models.batch import Parts
from loopscope.models.protocol import LoopedModel

_DTYPES = (torch.bfloat16, torch.float16)
_CAPABILITY = (8, 0)
_WIDEST, _MULTIPLE = 256, 8
"""Of a head: what the kernel takes."""


def takes_varlen(q: Tensor) -> bool:
    """Whether the kernel takes such queries, [..., P]."""
    if type(q) is not Tensor or not q.is_cuda or q.shape[-1] > _WIDEST or is_differentiating():
        return False
    return runs_varlen(q.device, q.dtype)


def runs_varlen(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there is a kernel for a model on this device, in this dtype."""
    if device.type != "cuda" or dtype not in _DTYPES or chosen() == "reference" or _kernel() is None:
        return False
    return _is_able(device)


@functools.cache
def _is_able(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= _CAPABILITY


def runs_unpadded(model: LoopedModel) -> bool:
    """Whether a model's sequences best stand in one row: it says that it can, and the kernel is there."""
    return bool(getattr(model, "unpadded", False)) and runs_varlen(model.device, getattr(model, "dtype", torch.float32))


def takes_shared(q: Tensor, parts: Parts) -> bool:
    """Whether `shared_attention` takes such queries, [..., P]: where something is shared, and Triton works."""
    return parts.places is not None and q.shape[-1] <= _WIDEST and takes_kernel(q)


def attend_parts(q_NHP: Tensor, k_NKP: Tensor, v_NKP: Tensor, parts: Parts) -> Tensor:
    """The attended values of every position, [N, H, P]."""
    if takes_shared(q_NHP, parts):
        from loopscope.kernels.shared_attention import attend_shared

        return attend_shared(q_NHP, k_NKP, v_NKP, parts.rows, parts.shared, parts.own_N, parts.longest_row)
    kernel, width = _kernel(), q_NHP.shape[-1]
    assert kernel is not None
    if parts.places is not None:
        k_NKP, v_NKP = k_NKP.index_select(0, parts.places), v_NKP.index_select(0, parts.places)
    q, k, v = (_widened(x) for x in (q_NHP, k_NKP, v_NKP))
    mixed: Tensor = kernel(q, k, v, parts.queries, parts.keys, parts.longest, parts.longest_keys, width**-0.5)
    return mixed[..., :width]


def _widened(x: Tensor) -> Tensor:
    missing = -x.shape[-1] % _MULTIPLE
    return functional.pad(x, (0, missing)) if missing else x


Kernel = Callable[..., Any]
_ARGUMENTS = ["query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal"]


@functools.cache
def _kernel() -> Kernel | None:
    """Torch's own, else that of flash-attention, else none."""
    op: Any = getattr(torch.ops.aten, "_flash_attention_forward", None)
    if op is not None and [a.name for a in op.default._schema.arguments][: len(_ARGUMENTS)] == _ARGUMENTS:
        # What `varlen_attn` calls; by way of that, a first call would load torch's compiler, in seconds.
        return lambda *given: op(*given[:-1], 0.0, True, False, scale=given[-1])[0]
    return _varlen_attn() or _flash_attn()


def _varlen_attn() -> Kernel | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    kernel: Any = varlen_attn  # what it is called with depends on torch's version
    known = inspect.signature(kernel).parameters
    options: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    options |= {"enable_gqa": True} if "enable_gqa" in known else {}
    return lambda *given: kernel(*given[:-1], scale=given[-1], **options)


def _flash_attn() -> Kernel | None:
    try:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]
    except ImportError:
        return None
    return lambda *given: flash_attn_varlen_func(*given[:-1], softmax_scale=given[-1], causal=True)
