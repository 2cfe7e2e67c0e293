"""A last block at a few positions only: which queries are asked, and the keys each of them sees.

A readout needs the logits of some positions. The last block before the head then computes keys and values
everywhere, but queries, projections and feed-forward only where they are asked for. The N positions asked for form
one row, [1, N, …]; attention wants them by row of the batch, padded to the row with most of them, [B, M, …].

Shapes: B rows, S positions, T keys, N positions asked for, M the most of them in one row, H heads, P head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.models.attention import Surroundings
from loopscope.models.rope import RotaryTables


@dataclass(frozen=True)
class Queries:
    """The positions asked for.

    Attributes:
        rows_N: the batch row of each.
        positions_N: the position of each in its row.
        slots_N: which of its row's queries each is.
        order_BM: which of the N each row's queries are; places left over repeat some query.
        visible_B1MT: True where a query sees a key.
        rotary: the position tables of the N.
    """

    rows_N: Tensor
    positions_N: Tensor
    slots_N: Tensor
    order_BM: Tensor
    visible_B1MT: Tensor
    rotary: RotaryTables

    def pick(self, x_BSD: Tensor) -> Tensor:
        """What stands at the positions asked for, [1, N, D]."""
        chosen = x_BSD[self.rows_N, self.positions_N]
        return chosen.reshape(1, chosen.shape[0], chosen.shape[1])

    def by_row(self, x_1NHP: Tensor) -> Tensor:
        """The queries of each row, [B, M, H, P]."""
        return x_1NHP.reshape(x_1NHP.shape[1:])[self.order_BM]

    def in_order(self, x_BMD: Tensor) -> Tensor:
        """Back to one row, [1, N, D]."""
        chosen = x_BMD[self.rows_N, self.slots_N]
        return chosen.reshape(1, chosen.shape[0], chosen.shape[1])


def queries_at(positions_N2: Tensor, around: Surroundings, rows: int, width: int) -> Queries:
    """The queries at (row, position), in any order, any of them more than once; negative ones count from the end.

    Everything but the tables is worked out where `positions_N2` is, so that positions on the CPU make no
    accelerator wait.
    """
    device = around.rotary.cos.device
    row = torch.where(positions_N2[:, 0] < 0, positions_N2[:, 0] + rows, positions_N2[:, 0])
    position = torch.where(positions_N2[:, 1] < 0, positions_N2[:, 1] + width, positions_N2[:, 1])
    counts = torch.bincount(row, minlength=rows)
    sorted_row, order = torch.sort(row, stable=True)
    slot_sorted = torch.arange(row.shape[0], device=row.device) - (counts.cumsum(0) - counts)[sorted_row]
    slots = torch.empty_like(order).scatter_(0, order, slot_sorted)
    order_BM = torch.zeros(rows, int(counts.max()), dtype=torch.int64, device=row.device)
    order_BM[row, slots] = torch.arange(row.shape[0], device=row.device)

    row, position, slots, order_BM = (part.to(device, non_blocking=True) for part in (row, position, slots, order_BM))
    at_BM = position[order_BM]
    if around.visible is None:
        visible = torch.arange(width, device=device) <= at_BM[:, None, :, None]
    else:
        visible = around.visible[torch.arange(rows, device=device)[:, None], 0, at_BM][:, None]
    cos, sin, layout = around.rotary
    table = row if cos.shape[0] > 1 else torch.zeros_like(row)
    tables = RotaryTables(cos[table, position][None], sin[table, position][None], layout)
    return Queries(row, position, slots, order_BM, visible, tables)
