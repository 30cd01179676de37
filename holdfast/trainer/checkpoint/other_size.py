"""Steps in memory from when the job had another number of ranks (`--nnodes MIN:MAX`).

Their shards have other names, and other ranks. Where every rank has the same state (data parallelism without sharding),
any rank's is the job's: each node offers what one of its ranks kept, and ranks on a node that has nothing get it from
another one. State that differs between ranks (PerRank, PerShard, DTensors) cannot be recovered from one rank's part: it
is restored from the disk, which has all parts.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from holdfast.node.vault.messages import SealedStep
from holdfast.trainer.checkpoint.agreement import RankGroup, Readability
from holdfast.trainer.checkpoint.errors import CheckpointError, CheckpointMismatch, DamagedCheckpoint
from holdfast.trainer.checkpoint.layout.dtensors import laid_out
from holdfast.trainer.checkpoint.layout.state_marks import GLOBAL, KeyedState
from holdfast.trainer.checkpoint.memory_tier import UNUSABLE, MemoryTier
from holdfast.trainer.vault_client.client import Shard, refused_if_unreadable
from holdfast.trainer.vault_client.shard_layout import entries_of, put_together

STEPS_SHARED_MAX = 2

log = logging.getLogger("holdfast.trainer.checkpoint")


class OtherSize:
    """Those steps, as all ranks know them. All ranks make every call."""

    def __init__(self, memory: MemoryTier, ranks: RankGroup, at_most: int | None) -> None:
        self._memory = memory
        self._ranks = ranks
        former = memory.former()
        mine = torch.full((STEPS_SHARED_MAX, 3), -1, dtype=torch.int64)
        for row, sealed in enumerate(former.sealed[:STEPS_SHARED_MAX]):
            if at_most is None or sealed.step <= at_most:
                mine[row] = torch.tensor((sealed.generation, sealed.step, former.world_size))
        self._holders: dict[SealedStep, list[int]] = {}
        self.world_size = 0
        """The number of ranks that the job had then; 0: there are no such steps."""
        for rank, rows in enumerate(ranks.all_gather(mine)):
            for generation, step, world_size in rows.tolist():
                if step >= 0:
                    self._holders.setdefault(SealedStep(generation=generation, step=step), []).append(rank)
                    self.world_size = world_size
        self.why_not = ""
        """Why none of them could be used."""

    @property
    def steps(self) -> list[SealedStep]:
        """Return the steps that any rank can have, newest first."""
        return sorted(self._holders, reverse=True)

    def restore(self, keyed: KeyedState, on_disk: SealedStep | None) -> SealedStep | None:
        """Load the newest step that is newer than the one on the disk and return it; None if there is none to load."""
        for sealed in self.steps:
            if on_disk is not None and sealed <= on_disk:
                return None
            if self._load(sealed, keyed):
                return sealed
        return None

    def _load(self, sealed: SealedStep, keyed: KeyedState) -> bool:
        holders = self._holders[sealed]
        shard: Shard | None = None
        problem: CheckpointError | None = _of_own(keyed)
        if problem is None and self._ranks.rank in holders:
            try:
                shard = self._memory.former_shard(sealed)
                if any(entry.spread is not None for entry in entries_of(shard.layout)):
                    problem = CheckpointMismatch("it has DTensors, of which each rank keeps its own part")
            except UNUSABLE as error:
                problem = DamagedCheckpoint(str(error))
        if not self._is_agreed(sealed, problem):
            return False
        if len(holders) < self._ranks.size:
            shard = self._sent(shard, holders[0])
        assert shard is not None
        loaded: dict[str, Any] = {}
        try:
            with refused_if_unreadable(f"step {sealed.step}"):
                state = put_together(shard.layout, shard.objects, shard.memory)
            loaded = laid_out(state, keyed.state_dict())
        except (*UNUSABLE, CheckpointMismatch) as error:
            problem = DamagedCheckpoint(str(error))
        if not self._is_agreed(sealed, problem):
            return False
        keyed.load(loaded, borrowed=True)
        return True

    def _is_agreed(self, sealed: SealedStep, problem: CheckpointError | None) -> bool:
        if self._ranks.agree_on_verdict(problem) is Readability.GOOD:
            return True
        why = problem or "another rank cannot use it, see its log"
        self.why_not = f"step {sealed.step} is in memory, kept by {self.world_size} ranks, but {why}"
        log.warning("%s", self.why_not)
        return False

    def _sent(self, shard: Shard | None, source: int) -> Shard:
        """Return the shard of `source` on all ranks. Others have other layouts: not all write to the disk."""
        mine, send = shard if self._ranks.rank == source else None, self._ranks.broadcast_bytes
        layout = send(None if mine is None else np.frombuffer(bytearray(mine.layout), np.uint8), source)
        objects = send(None if mine is None else np.frombuffer(bytearray(mine.objects), np.uint8), source)
        memory = send(None if mine is None else mine.memory, source)
        return Shard(layout.tobytes(), objects.tobytes(), memory)


def _of_own(keyed: KeyedState) -> CheckpointMismatch | None:
    if keyed.spaces <= {GLOBAL}:
        return None
    return CheckpointMismatch(
        "the state has entries marked PerRank or PerShard, which one rank's memory does not hold for the others"
    )
