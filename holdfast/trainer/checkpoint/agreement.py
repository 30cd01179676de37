"""Agreement of a job's ranks about checkpoints: small collectives on any backend, and without any for one rank."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
import torch.distributed as dist

from holdfast.node.vault.seals import Bytes
from holdfast.trainer.checkpoint.errors import CheckpointError, DamagedCheckpoint
from holdfast.trainer.device import has_accelerator

_OF_HOST = ("gloo", "mpi", "ucc")
CHUNK_BYTES = 64 << 20
"""Sent by one collective."""


class Readability(IntEnum):
    """Result of reading a checkpoint; the worst of all ranks' results counts for all."""

    GOOD = 0
    DAMAGED = 1
    UNUSABLE = 2


class RankGroup:
    """The ranks that save and restore together (`group` None: the whole job). All of them make every call."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        distributed = dist.is_available() and dist.is_initialized()
        self._group = group
        self._device = _collective_device(group) if distributed else torch.device("cpu")
        self.rank = dist.get_rank(group) if distributed else 0
        self.size = dist.get_world_size(group) if distributed else 1

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Return the tensor of rank 0, or of `source`, on all ranks; the others give one of the same shape."""
        if self.size == 1:
            return tensor
        tensor = tensor.to(self._device)
        dist.broadcast(tensor, group=self._group, group_src=source)
        return tensor

    def broadcast_bytes(self, data: Bytes | None, source: int) -> Bytes:
        """Return the bytes that `source` gives on all ranks; the others give None."""
        size = int(self.broadcast(torch.tensor([0 if data is None else data.size]), source).item())
        memory = np.empty(size, np.uint8) if data is None else data
        for begin in range(0, size, CHUNK_BYTES):
            part = torch.from_numpy(memory[begin : begin + CHUNK_BYTES])
            sent = self.broadcast(part if self.rank == source else torch.empty_like(part), source)
            if data is None:
                part.copy_(sent)
        return memory

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's tensor, all of the same shape."""
        if self.size == 1:
            return [tensor]
        mine = tensor.to(self._device)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(everyone, mine, group=self._group)
        return [row.cpu() for row in everyone]

    def gather(self, record: bytes, room: int) -> list[bytes]:
        """Return every rank's record on rank 0, [] elsewhere; each has at most `room` bytes and does not end in a
        space.
        """
        if self.size == 1:
            return [record]
        mine = torch.frombuffer(bytearray(record.ljust(room)), dtype=torch.uint8).to(self._device)
        everyone = [torch.empty_like(mine) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(mine, everyone, group=self._group, group_dst=0)
        return [row.cpu().numpy().tobytes().rstrip() for row in everyone or ()]

    def agree_on_bound(self, bound: int | None) -> int | None:
        agreed = int(self.broadcast(torch.tensor([-1 if bound is None else bound])).item())
        return None if agreed < 0 else agreed

    def agree_on_verdict(self, problem: CheckpointError | None) -> Readability:
        """Return the worst result of all ranks. `problem` is this rank's, None if it read everything."""
        mine = Readability.GOOD
        if problem is not None:
            mine = Readability.DAMAGED if isinstance(problem, DamagedCheckpoint) else Readability.UNUSABLE
        if self.size == 1:
            return mine
        verdict = torch.tensor([mine], device=self._device)
        dist.all_reduce(verdict, dist.ReduceOp.MAX, group=self._group)
        return Readability(int(verdict.item()))


def _collective_device(group: dist.ProcessGroup | None) -> torch.device:
    backend = dist.get_backend(group)
    if "nccl" in backend:
        return torch.device("cuda", torch.cuda.current_device())
    accelerator = torch.accelerator.current_accelerator() if has_accelerator() else None
    # Only these have collectives of the host's tensors.
    if accelerator is None or any(name in backend for name in _OF_HOST):
        return torch.device("cpu")
    return accelerator
