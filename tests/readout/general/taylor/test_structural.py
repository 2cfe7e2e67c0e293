"""Rules for operations that only move entries, each against nested forward mode in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from loopscope.readout.general.taylor import Series

G = torch.Generator().manual_seed(7)


def _randn(*shape):
    return torch.randn(*shape, generator=G, dtype=torch.float64)


def _ones(*shape):
    return torch.ones(*shape, dtype=torch.float64)


K = _randn(2, 3, 4)
ROWS, COLUMNS = torch.tensor([1, 0, 1]), torch.tensor([0, 3, 2])
MASK = torch.tensor([[True, False, True, True], [False, True, True, False], [True, True, False, True]])


# Each takes x of shape [2, 3, 4]. A test below asks that no rule of the file is left out.
CASES = {
    "reshape": lambda x: torch.reshape(x * x, (6, -1)),
    "view": lambda x: (x * x).view(2, 12),
    "view_as": lambda x: (x * x).view_as(_ones(4, 6)),
    "reshape_as": lambda x: (x * x).reshape_as(_ones(4, 6)),
    "flatten": lambda x: (x * x).flatten(1),
    "unflatten": lambda x: (x * x).unflatten(-1, (2, 2)),
    "transpose": lambda x: (x * x).transpose(0, -1),
    "swapaxes": lambda x: (x * x).swapaxes(1, 2),
    "swapdims": lambda x: (x * x).swapdims(1, 2),
    "t": lambda x: (x * x)[0].t() + (x * x)[1].T + x[0].mT,
    "permute": lambda x: (x * x).permute(2, 0, 1) + torch.permute(x, (-1, 0, 1)),
    "movedim": lambda x: (x * x).movedim(0, -1) + x.movedim((0, 1), (2, 0)),
    "moveaxis": lambda x: torch.moveaxis(x * x, 2, 0),
    "unsqueeze": lambda x: (x * x).unsqueeze(1) + x.unsqueeze(-3),
    "squeeze": lambda x: (x * x)[:1].squeeze(0) + (x * x)[:1].squeeze(),
    "expand": lambda x: (x * x)[:, :1].expand(5, -1, 3, 4),
    "broadcast_to": lambda x: (x * x)[0, 0].broadcast_to((2, 4)),
    "expand_as": lambda x: (x * x)[:1].expand_as(K),
    "repeat": lambda x: (x * x).repeat(2, 1, 1, 2),
    "tile": lambda x: (x * x).tile(1, 2, 1),
    "repeat_interleave": lambda x: (x * x).repeat_interleave(2, dim=1),
    "repeat_interleave-flat": lambda x: torch.repeat_interleave(x * x, 2),
    "chunk": lambda x: (lambda a, b: a * b)(*(x * x).chunk(2, dim=-1)),
    "split": lambda x: (lambda a, b: a + b[..., :1])(*torch.split(x * x, [1, 3], dim=-1)),
    "split_with_sizes": lambda x: (x * x).split_with_sizes([2, 2], -1)[1],
    "tensor_split": lambda x: torch.tensor_split(x * x, 2, dim=2)[0],
    "unbind": lambda x: torch.unbind(x * x, 1)[2] + next(iter(x))[:2],
    "select": lambda x: (x * x).select(1, 2),
    "narrow": lambda x: (x * x).narrow(2, 1, 2),
    "index_select": lambda x: (x * x).index_select(0, ROWS),
    "gather": lambda x: (x * x).gather(2, torch.tensor([[[0], [3], [1]], [[2], [2], [0]]])),
    "take_along_dim": lambda x: torch.take_along_dim(x * x, torch.tensor([[[1]], [[0]]]), 2),
    "__getitem__": lambda x: (x * x)[..., 1::2] + x[:, None, :, 0::2],
    "getitem-tensors": lambda x: (x * x)[ROWS, COLUMNS.clamp(max=2)],
    "getitem-tensors-last": lambda x: (x * x)[..., COLUMNS],
    "getitem-separated": lambda x: (x * x)[ROWS, :, COLUMNS],
    "getitem-separated-int": lambda x: (x * x)[0, :, COLUMNS],
    "getitem-mask": lambda x: (x * x)[:, MASK],
    "cat": lambda x: torch.cat([x * x, K, x], dim=1),
    "concat": lambda x: torch.concat([x, x * x], dim=-1),
    "concatenate": lambda x: torch.concatenate([x, x * x]),
    "stack": lambda x: torch.stack([x * x, K], dim=-1) + torch.stack([x, x], -1),
    "roll": lambda x: torch.roll(x * x, 1, 2),
    "flip": lambda x: torch.flip(x * x, [1]),
    "tril": lambda x: torch.tril(x * x),
    "triu": lambda x: torch.triu(x * x, 1),
    "pad": lambda x: functional.pad(x * x, (1, 2), value=2.0),
    "contiguous": lambda x: (x * x).transpose(0, 1).contiguous(),
    "clone": lambda x: (x * x).clone(),
    "to": lambda x: (x * x).to(torch.float64).to(K).to(x),
    "type": lambda x: (x * x).type(torch.float64),
    "type_as": lambda x: (x * x).type_as(K),
    "double": lambda x: (x * x).double(),
    "float": lambda x: (x * x).float().double() - (x * x).float().double() + x * x,
    "detach": lambda x: x * (x * x).detach(),
    "view_as_complex": lambda x: torch.view_as_real(
        torch.view_as_complex((x * x).unflatten(-1, (2, 2))) * torch.polar(_ones(3, 2), _ones(3, 2))
    ),
    "view_as_real": lambda x: torch.view_as_real(torch.view_as_complex((x * x).unflatten(-1, (2, 2)))),
    "size": lambda x: x * x * x.size(-1) * x.size()[0],
    "dim": lambda x: x * x * x.dim(),
    "ndimension": lambda x: x * x * x.ndimension(),
    "numel": lambda x: x * x / x.numel(),
    "nelement": lambda x: x * x / x.nelement(),
    "is_floating_point": lambda x: x * x if x.is_floating_point() else x,
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x * x, K[0])[0] + torch.broadcast_tensors(K, x[0] ** 2)[1],
    "unfold": lambda x: (x * x).unfold(-1, 2, 1) + functional.unfold(x[None], (2, 2)).sum(),
    "diagonals": lambda x: (
        torch.diagonal(x * x, dim1=-2, dim2=-1) + torch.diag_embed(x[0, 0]).diag()[:3] + x[0].trace()
    ),
    "moves": lambda x: (
        torch.rot90(x * x, 2, (1, 2)) + torch.fliplr(x) + torch.flipud(x * x) + x.ravel().reshape(2, 3, 4)
    ),
    "diff": lambda x: torch.diff(x * x, dim=-1),
    "shuffles": lambda x: torch.pixel_unshuffle(torch.pixel_shuffle(x.reshape(1, 4, 2, 3), 2), 2) ** 2,
    "channel_shuffle": lambda x: torch.channel_shuffle((x * x).reshape(1, 4, 2, 3), 2),
    "pools": lambda x: functional.avg_pool1d(x * x, 2) + functional.adaptive_avg_pool1d(x, 2),
    "pools-2d": lambda x: functional.avg_pool2d(x * x, 2)[:1] + functional.adaptive_avg_pool2d(x, (1, 2))[1:],
    "pools-3d": lambda x: functional.avg_pool3d((x * x)[None], 2) + functional.adaptive_avg_pool3d(x[None], (1, 1, 2)),
    "fold": lambda x: functional.fold((x * x).reshape(1, 12, 2), (3, 2), (2, 2)),
    "interpolate": lambda x: functional.interpolate(x * x, scale_factor=2, mode="linear"),
    "hstack": lambda x: torch.hstack([x * x, K]) + torch.column_stack([x, x]) + torch.hstack([x[0, 0], x[0, 0]]).sum(),
    "vstack": lambda x: torch.vstack([x * x, K]) + torch.vstack([x[0, 0], K[0, 0]]).sum(),
    "pad-reflected": lambda x: functional.pad(x * x, (1, 2), mode="reflect") + torch.constant_pad_nd(x, (1, 2), 2.0),
    "squeeze-axes": lambda x: (x * x)[:1].squeeze((0, -1)) + x[:1, :1, :1].squeeze(),
    "take_along_dim-flat": lambda x: torch.take_along_dim(x * x, COLUMNS),
    "roll-flat": lambda x: torch.roll(x * x, 3),
    "looked-at": lambda x: x * x * K.to(x) * K.expand_as(x) * K.type_as(x) * K[0, 0].expand_as(x) * K.view_as(x),
    "element_size": lambda x: x * x * x.element_size(),
    "facts": lambda x: x * x * x.stride(-1) * x.is_contiguous() * (not x.is_complex()) * (x.get_device() < 0),
}


@pytest.mark.parametrize("name", CASES)
def test_rule_agrees_with_nested_forward_mode(name, agrees_with_nesting):
    agrees_with_nesting(CASES[name])


@pytest.mark.parametrize("file", ["structural", "conversions"])
def test_every_rule_is_exercised(file, rules_without_a_case):
    assert rules_without_a_case(file, CASES.values()) == set()


def test_float_converts_every_coefficient(line):
    series = Series.line(*line, 2).float()
    assert series.dtype == torch.float32
    assert torch.equal(series.coefficients[1], line[1].float())
