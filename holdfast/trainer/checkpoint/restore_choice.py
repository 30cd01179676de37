"""The choice of the checkpoint on disk to restore: rank 0 chooses, and the other ranks need not see the directory."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from holdfast.trainer.checkpoint import environment
from holdfast.trainer.checkpoint.agreement import RankGroup
from holdfast.trainer.checkpoint.environment import Scratch
from holdfast.trainer.checkpoint.errors import CheckpointError, DamagedCheckpoint, Superseded
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest, decode_manifest, encode_manifest
from holdfast.trainer.checkpoint.storage.directory import Storage, newest_first
from holdfast.trainer.checkpoint.storage.folder import StepState

log = logging.getLogger("holdfast.trainer.checkpoint")


class RestoreChoice:
    """The choice for a job: what may not be restored is set aside."""

    def __init__(self, storage: Storage, ranks: RankGroup) -> None:
        self._storage = storage
        self._ranks = ranks

    def newest(
        self,
        *,
        newer_in_memory: bool = False,
        any_in_memory: bool = False,
        may_come_back: Callable[[], bool] = lambda: False,
    ) -> CheckpointManifest | None:
        """Return the newest step that is complete and may be restored, the same on all ranks; None if there is none.

        Raises CheckpointError if there are steps but none may be restored: a job never starts over without being asked.
        With `any_in_memory` the job can go on from memory, so neither that nor unreadable storage is an error.
        `may_come_back`: whether ranks may have steps again that they kept; then none on disk is given up for a start
        from scratch.
        """
        if self._ranks.rank == 0:
            try:
                manifest = self._newest_complete(newer_in_memory, any_in_memory, may_come_back)
            except Exception:
                self._ranks.broadcast(torch.tensor([-1]))
                raise
            record = b"" if manifest is None else encode_manifest(manifest)
            self._ranks.broadcast(torch.tensor([len(record)]))
            if record:
                self._ranks.broadcast(torch.frombuffer(bytearray(record), dtype=torch.uint8))
            return manifest
        size = int(self._ranks.broadcast(torch.tensor([0])).item())
        if size < 0:
            # Raises Superseded if a newer generation is there: then this rank must end just as quietly as rank 0.
            self._storage.claim()
            raise CheckpointError("rank 0 could not choose a checkpoint, its log says why")
        if size == 0:
            return None
        record = self._ranks.broadcast(torch.empty(size, dtype=torch.uint8)).cpu().numpy().tobytes()
        return decode_manifest(record)

    def set_aside(self, step: int, problem: CheckpointError | None) -> None:
        """Set a damaged step aside; `problem` is what this rank has found, None if another rank did."""
        if self._ranks.rank == 0:
            self._set_aside_damaged(step, problem or "another rank found it damaged, see its log")
        elif problem is not None:
            log.warning("checkpoint of step %d is damaged: %s", step, problem)

    def _newest_complete(
        self, newer_in_memory: bool, any_in_memory: bool, may_come_back: Callable[[], bool]
    ) -> CheckpointManifest | None:
        at_most = environment.restore_step()
        self._storage.claim()
        try:
            return self._newest_of(at_most, newer_in_memory, any_in_memory, may_come_back)
        except Superseded:
            raise
        except (CheckpointError, OSError) as error:
            # What a rollback abandons has to be set aside before anything is gone on from.
            if not any_in_memory or at_most is not None:
                raise
            log.warning("the checkpoints on disk cannot be looked at, going on from memory: %s", error)
            return None

    def _newest_of(
        self, at_most: int | None, newer_in_memory: bool, any_in_memory: bool, may_come_back: Callable[[], bool]
    ) -> CheckpointManifest | None:
        published = self._storage.steps()
        candidates = newest_first(published, at_most)
        # A target of 0 asks for a new beginning, and None for whatever is newest.
        if at_most and not candidates and not any_in_memory and (newer_in_memory or self._has_newer(published)):
            gone = f"no checkpoint of step {at_most} or before it is left, and newer ones are not to be restored"
            if environment.scratch() is not Scratch.ALLOWED:
                raise CheckpointError(
                    f"{gone}; starting from scratch unasked would throw the run away. Set HOLDFAST_RESTORE_STEP to a "
                    "newer one that you trust (one that was set aside is renamed without .rolled-back first), or to 0 "
                    "to start afresh; a job that is submitted with --allow-scratch does so by itself after bad numbers"
                )
            if may_come_back():
                return None  # `MemoryTier.start_over` refuses, on all ranks
            log.warning("%s: starting from scratch, as the job's owner allows", gone)
        for step in sorted(set(published) - set(candidates)):
            log.warning("checkpoint of step %d is newer than the rollback's target %s, set aside", step, at_most)
            self._storage.set_aside(step, "rolled-back")
        for step in candidates:
            try:
                return self._storage.manifest(step)
            except DamagedCheckpoint as error:
                self._set_aside_damaged(step, error)
        damaged = self._storage.damaged()
        if damaged and at_most != 0 and not any_in_memory:
            raise CheckpointError(
                f"no checkpoint is left to restore and those of steps {sorted(damaged)} are damaged; starting from "
                "scratch unasked would throw the run away. Repair one (rename it without .damaged), or set "
                "HOLDFAST_RESTORE_STEP=0 to start afresh"
            )
        return None

    def _has_newer(self, published: list[int]) -> bool:
        """Return True if there is a step above the target, also one that an earlier try has set aside.

        `published` has none at or below the target.
        """
        return bool(published) or any(found.state is StepState.ROLLED_BACK for found in self._storage.survey())

    def _set_aside_damaged(self, step: int, reason: object) -> None:
        log.warning("checkpoint of step %d is damaged, set aside, trying an older one: %s", step, reason)
        self._storage.set_aside(step, "damaged")


class ReadOnlyChoice(RestoreChoice):
    """The choice for a replay: it changes nothing on the disk, and begins from scratch where no step is left."""

    def __init__(self, storage: Storage, ranks: RankGroup) -> None:
        super().__init__(storage, ranks)
        self._passed_over: set[int] = set()

    def set_aside(self, step: int, problem: CheckpointError | None) -> None:
        """Pass over a damaged step, so that the next older one is tried."""
        self._passed_over.add(step)
        if problem is not None:
            log.warning("checkpoint of step %d is damaged, a replay leaves it where it is: %s", step, problem)

    def _newest_complete(
        self, newer_in_memory: bool, any_in_memory: bool, may_come_back: Callable[[], bool]
    ) -> CheckpointManifest | None:
        for step in newest_first(self._storage.steps(), environment.restore_step()):
            try:
                if step not in self._passed_over:
                    return self._storage.manifest(step)
            except DamagedCheckpoint as error:
                self.set_aside(step, error)
        return None
