"""Steps of a small model's training as CUDA graphs: what launches thousands of small kernels is recorded and replayed.

A graph has fixed shapes and takes no decision, so there is one for every width of a batch, rounded up, and every depth
that a loss draws. The first step of a kind runs as it is, the second is recorded, all further ones are replayed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from loopscope.toys.objective import Supervised

WIDTHS = 72
"""Widths are rounded up to a multiple of this."""


class Gradients:
    """Fills the gradients of parameters by `loss(asked, drawn)`, replaying what it has seen twice.

    Attributes:
        loss: of the step that was last run, on the device.
    """

    def __init__(
        self,
        loss: Callable[[Supervised, int], Tensor],
        parameters: list[torch.nn.Parameter],
        generator: torch.Generator,
    ) -> None:
        self._make_loss, self._generator, device = loss, generator, generator.device
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self._asked: dict[int, Supervised] = {}
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph | None] = {}
        self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        self.loss = torch.zeros((), device=device)

    def fill(self, asked: Supervised, drawn: int) -> None:
        """The gradients of one step; its batch is on the CPU, its width a multiple of `WIDTHS`."""
        width = asked.targets.shape[1]
        if width not in self._asked:
            self._asked[width] = placed(asked, self.loss.device)
        held, kind = self._asked[width], (width, drawn)
        for there, here in zip(_tensors(held), _tensors(asked), strict=True):
            there.copy_(here.pin_memory(), non_blocking=True)
        if kind not in self._graphs:
            now = torch.cuda.current_stream()
            self._stream.wait_stream(now)
            with torch.cuda.stream(self._stream):
                self._backward(held, drawn)
            now.wait_stream(self._stream)
            self._graphs[kind] = None
            return
        graph = self._graphs[kind]
        if graph is None:
            self._graphs[kind] = graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._generator)
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                self._backward(held, drawn)
        graph.replay()

    def _backward(self, asked: Supervised, drawn: int) -> None:
        torch._foreach_zero_(self._gradients)
        loss = self._make_loss(asked, drawn)
        loss.backward()
        self.loss.copy_(loss.detach())


def _tensors(asked: Supervised) -> tuple[Tensor, ...]:
    return (
        asked.batch.input_ids,
        asked.batch.attention_mask,
        asked.targets,
        asked.weights,
        asked.solution,
        asked.story,
    )


def placed(asked: Supervised, device: torch.device) -> Supervised:
    """The same on another device."""
    rest = (part.to(device) for part in (asked.targets, asked.weights, asked.solution, asked.story))
    return Supervised(asked.batch.to(device), *rest)
