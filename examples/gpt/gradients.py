"""The gradients of one rank in one buffer, so that data parallelism costs one message a step."""

from __future__ import annotations

import torch
import torch.distributed as dist
from model import Stage
from parallel import Mesh, is_split

CLIP_NORM = 1.0


class Gradients:
    """Owns the ``grad`` of every parameter of a stage: zero them here, not with the optimizer."""

    def __init__(self, stage: Stage, mesh: Mesh) -> None:
        parameters = sorted(stage.parameters(), key=is_split)
        self._flat = torch.zeros(sum(it.numel() for it in parameters), device=parameters[0].device)
        offset = 0
        for parameter in parameters:
            parameter.grad = self._flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
        self._replicated = self._flat[: sum(p.numel() for p in parameters if not is_split(p))]
        self._mesh = mesh
        self._has_loss = stage.is_last and mesh.tp.rank == 0

    def zero(self) -> None:
        self._flat.zero_()

    def finish(self, loss: float) -> tuple[float, float]:
        """Average over the replicas and clip. Returns the whole job's loss and gradient norm, the same on all ranks."""
        mesh = self._mesh
        if mesh.dp.group is not None:
            dist.all_reduce(self._flat, group=mesh.dp.group)
            self._flat /= mesh.dp.size
        square = 0.0
        if mesh.dp.rank == 0:
            # Tensor-parallel ranks hold the same gradient of a replicated parameter: only the first one counts it.
            square = self._flat.dot(self._flat).item()
            if mesh.tp.rank != 0:
                square -= self._replicated.dot(self._replicated).item()
        shares = [loss / mesh.dp.size if self._has_loss else 0.0, square]
        total = torch.tensor(shares, dtype=torch.float64, device=self._flat.device)
        dist.all_reduce(total)
        norm = total[1].sqrt().item()
        if norm > CLIP_NORM:
            self._flat *= CLIP_NORM / norm
        return total[0].item(), norm
