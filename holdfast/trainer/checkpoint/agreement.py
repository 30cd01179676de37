"""What the ranks of a job tell each other about checkpoints: few words, on any backend, also where a rank is alone."""

from __future__ import annotations

from enum import IntEnum

import torch
import torch.distributed as dist

from holdfast.trainer.checkpoint.errors import CheckpointError, DamagedCheckpoint


class Readability(IntEnum):
    """What a rank makes of a checkpoint; the worst of all ranks' is everyone's."""

    GOOD = 0
    DAMAGED = 1
    UNUSABLE = 2


class RankGroup:
    """The ranks that save and restore together, as one of them sees it. Every call is made by all of them."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """`group` None: the whole job."""
        distributed = dist.is_available() and dist.is_initialized()
        self._group = group
        self._device = _collective_device(group) if distributed else torch.device("cpu")
        self.rank = dist.get_rank(group) if distributed else 0
        self.size = dist.get_world_size(group) if distributed else 1

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's tensor; the others give one of the same shape."""
        if self.size == 1:
            return tensor
        tensor = tensor.to(self._device)
        dist.broadcast(tensor, group=self._group, group_src=0)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's tensor, all of the same shape."""
        if self.size == 1:
            return [tensor]
        mine = tensor.to(self._device)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(everyone, mine, group=self._group)
        return [row.cpu() for row in everyone]

    def gather(self, record: bytes, room: int) -> list[bytes]:
        """Every rank's record at rank 0, an empty list elsewhere. A record has at most `room` bytes, no space last."""
        if self.size == 1:
            return [record]
        mine = torch.frombuffer(bytearray(record.ljust(room)), dtype=torch.uint8).to(self._device)
        everyone = [torch.empty_like(mine) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(mine, everyone, group=self._group, group_dst=0)
        return [row.cpu().numpy().tobytes().rstrip() for row in everyone or ()]

    def agree_on_bound(self, bound: int | None) -> int | None:
        """Rank 0's bound on what may be restored."""
        agreed = int(self.broadcast(torch.tensor([-1 if bound is None else bound])).item())
        return None if agreed < 0 else agreed

    def agree_on_verdict(self, problem: CheckpointError | None) -> Readability:
        """Return the worst verdict of all ranks, each of which says what its own problem is."""
        mine = Readability.GOOD
        if problem is not None:
            mine = Readability.DAMAGED if isinstance(problem, DamagedCheckpoint) else Readability.UNUSABLE
        if self.size == 1:
            return mine
        verdict = torch.tensor([mine], device=self._device)
        dist.all_reduce(verdict, dist.ReduceOp.MAX, group=self._group)
        return Readability(int(verdict.item()))


def _collective_device(group: dist.ProcessGroup | None) -> torch.device:
    on_gpu = "nccl" in dist.get_backend(group)
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
