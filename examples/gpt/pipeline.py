"""GPipe: all micro-batches forward, then all of them backward, over point-to-point messages."""

from __future__ import annotations

import torch
import torch.distributed as dist
from model import Stage
from parallel import Dim
from torch.nn import functional


class Pipeline:
    """Runs one batch through all stages; every rank of the pipeline calls `step` with the same batch."""

    def __init__(self, stage: Stage, pp: Dim, *, microbatches: int, width: int) -> None:
        self._stage = stage
        self._pp = pp
        self._microbatches = microbatches
        self._width = width
        self._sends: list[dist.Work] = []

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Forward and backward of one batch; gradients add up in the parameters. The loss on the last stage, else 0."""
        received, computed = [], []
        for piece, target in zip(inputs.chunk(self._microbatches), targets.chunk(self._microbatches), strict=True):
            x = piece if self._stage.is_first else self._receive(piece, self._pp.rank - 1).requires_grad_()
            y = self._stage(x)
            if self._stage.is_last:
                y = functional.cross_entropy(y.flatten(0, 1), target.flatten()) / self._microbatches
            else:
                self._send(y.detach(), self._pp.rank + 1)
            received.append(x)
            computed.append(y)

        for piece, x, y in zip(inputs.chunk(self._microbatches), received, computed, strict=True):
            torch.autograd.backward(y, None if self._stage.is_last else self._receive(piece, self._pp.rank + 1))
            if not self._stage.is_first:
                assert x.grad is not None
                self._send(x.grad, self._pp.rank - 1)

        for send in self._sends:
            send.wait()
        self._sends.clear()
        return sum(y.item() for y in computed) if self._stage.is_last else 0.0

    def _send(self, tensor: torch.Tensor, stage: int) -> None:
        work = dist.isend(tensor.contiguous(), self._pp.peer(stage), group=self._pp.group)
        assert work is not None
        self._sends.append(work)

    def _receive(self, piece: torch.Tensor, stage: int) -> torch.Tensor:
        tensor = torch.empty(*piece.shape, self._width, device=piece.device)
        dist.recv(tensor, self._pp.peer(stage), group=self._pp.group)
        return tensor
