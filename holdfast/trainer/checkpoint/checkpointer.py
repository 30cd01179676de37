"""Checkpoints that a job can trust: published atomically, checked before use, agreed upon by all ranks.

::

    checkpointer = Checkpointer()                       # $HOLDFAST_JOB_DIR/checkpoints
    step = checkpointer.restore(state)                  # 0 when there is nothing to restore
    ...
    checkpointer.save(step, state)

The state is a dict of ``Stateful`` objects (modules, optimizers, loaders) and plain values, as for
``torch.distributed.checkpoint``; see `holdfast.trainer.checkpoint.layout.state_marks` for entries that differ between
ranks.

DCP's planners decide what each rank writes and reads. Its drivers (``dcp.save``, ``dcp.load``) are not used: on every
call they gather every rank's plan at rank 0, pickled, and they leave no room between "all ranks have verified their
bytes" and "the model has been overwritten", where the ranks must agree.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.device_mesh import DeviceMesh

from holdfast.node.vault.messages import PersistTo, SealedStep
from holdfast.orders.replay import ReplaySettings
from holdfast.trainer.checkpoint import environment, script_steps
from holdfast.trainer.checkpoint.agreement import RankGroup, Readability
from holdfast.trainer.checkpoint.errors import (
    CheckpointError,
    CheckpointMismatch,
    DamagedCheckpoint,
    Superseded,
    ended_if_superseded,
)
from holdfast.trainer.checkpoint.layout.dtensors import laid_out
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest, CheckpointPart
from holdfast.trainer.checkpoint.layout.part_format import LoadPlanner, PartReader, PartWriter, plan_part
from holdfast.trainer.checkpoint.layout.state_marks import KeyedState, PerRank, PerShard, RngState
from holdfast.trainer.checkpoint.memory_tier import UNUSABLE, MemoryTier
from holdfast.trainer.checkpoint.objects.object_store import ObjectStorage
from holdfast.trainer.checkpoint.other_size import OtherSize
from holdfast.trainer.checkpoint.pace.rank_pace import pace_of
from holdfast.trainer.checkpoint.restore_choice import ReadOnlyChoice, RestoreChoice
from holdfast.trainer.checkpoint.saved import SavedCheckpoint, report_saved
from holdfast.trainer.checkpoint.shape_fit import refuse_other_shape, shape_of
from holdfast.trainer.checkpoint.storage.directory import DirectoryStorage, Storage, decode_part
from holdfast.trainer.checkpoint.storage.places import is_url, open_storage
from holdfast.trainer.checkpoint.storage.retention import Retention
from holdfast.trainer.checkpoint.storage.workplace import UNFENCED
from holdfast.trainer.phases import phase, resumed
from holdfast.trainer.replay_run import job_rank, replay

__all__ = [
    "CheckpointError",
    "CheckpointMismatch",
    "Checkpointer",
    "DamagedCheckpoint",
    "DirectoryStorage",
    "PerRank",
    "PerShard",
    "RngState",
    "SavedCheckpoint",
    "Storage",
    "Superseded",
]

log = logging.getLogger("holdfast.trainer.checkpoint")

PART_RECORD_BYTES = 1024
"""Room for one rank's part in the gather that ends a save."""


@dataclass(frozen=True)
class _Verified:
    """A checkpoint whose bytes this rank has read and checked, and where they are to go."""

    reader: PartReader
    planner: LoadPlanner
    items: list[ReadItem]
    state_dict: dict[str, Any]


class Checkpointer:
    """Saves and restores the job's state, all ranks together."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        keep: int = 3,
        keep_bytes: int = 0,
        process_group: dist.ProcessGroup | None = None,
        mesh: DeviceMesh | Mapping[str, int] | None = None,
        on_saved: Callable[[SavedCheckpoint], None] = report_saved,
        storage: Storage | None = None,
    ) -> None:
        """Every rank of ``process_group`` (default: the whole job) makes one, with the same arguments.

        Args:
            directory: shared by all nodes, or a URL (``s3://bucket/run``, ``gs://``, ``az://``). Default:
                ``$HOLDFAST_JOB_DIR/checkpoints``, else ``./checkpoints``.
            keep: how many of the newest steps to keep, at least 1.
            keep_bytes: how many bytes they may take together; 0: any number. The newest is kept whatever it takes.
            mesh: recorded with each checkpoint, to explain a mismatch. Default: ``$HOLDFAST_MESH``.
            on_saved: called on rank 0 when a checkpoint has become restorable. Default: report it to Holdfast.
            storage: keeps the bytes instead of ``directory``.
        """
        if keep < 1:
            raise ValueError(f"keep={keep}: at least one checkpoint must be kept, or a job has nothing to restart from")
        if storage is not None and directory is not None:
            raise ValueError("give either a directory or a storage, not both")
        self._replay = replay()
        self._owner = environment.owner() if self._replay is None else UNFENCED
        self._storage = storage or open_storage(directory or environment.default_directory(), owner=self._owner)
        self._retention = Retention(keep, keep_bytes)
        self._mesh = environment.mesh_sizes(mesh)
        self._on_saved = on_saved
        self._ranks = RankGroup(process_group)
        self._choice = (RestoreChoice if self._replay is None else ReadOnlyChoice)(self._storage, self._ranks)
        self._rank = self._ranks.rank
        self._place = job_rank(self._rank) if process_group is None else self._rank
        # A part of the job keeps no shards: their names are those of the whole job's ranks.
        name = environment.shard_name(self._owner, self._rank, self._ranks.size) if process_group is None else None
        self._memory = MemoryTier(name, self._owner.generation, self._persist_to(directory, storage))
        self._pace = pace_of(name, self._owner.generation, self._memory)
        script_steps.of_this_process.are_kept |= self._memory.has_vault

    def keep(self, step: int, state: dict[str, Any]) -> bool:
        """Keep the state as of the completed ``step`` in the memory of this rank's node: meant for every step.

        It returns as soon as the state may be changed; what is changed afterwards is not in it. (On an accelerator
        optimizers wait for it by themselves, and others call `gate` first: `docs/gpu.md`.) At the
        job's interval (`holdfast run --persist-every`) the node writes one step to the directory while training goes
        on. If keeping every step costs too much of training's time, all ranks keep one step in two, four and so on
        (`docs/checkpoints.md`). Returns False if the step is not kept; training may go on. A replay keeps nothing.

        Raises DirectoryTaken on rank 0 if another job writes to the directory.
        """
        _refuse_if_no_step(step)
        if self._replay is not None:
            return False
        self._hold()
        return self._pace.keep(step, lambda: self._keep(step, state))

    def _keep(self, step: int, state: dict[str, Any]) -> bool:
        keyed = KeyedState(state, self._rank)
        kept = keyed.state_dict()
        return self._memory.keep(step, kept, lambda: keyed.part_plan(plan_part(kept, keyed.writes)), keyed.kept_for)

    def gate(self) -> None:
        """Have the accelerator wait until the state that was kept may be changed; the host does not wait.

        A torch optimizer's `step` does this by itself. A script that changes its tensors in another way calls it before
        that, on the stream that changes them. Without an accelerator it does nothing.
        """
        self._memory.gate()

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save the state as of the completed ``step``; on return it is durable and restorable, on every rank.

        Training waits for it. It is meant for steps that must be on the disk before the script goes on, such
        as the last, and for jobs without a vault.

        Raises CheckpointError on every rank when any rank fails to write; what was there before stays restorable.
        A rank that a newer generation has replaced ends here. A replay saves nothing.
        """
        _refuse_if_no_step(step)
        if self._replay is not None:
            return
        started = time.monotonic()
        with phase("checkpoint"), ended_if_superseded():
            try:
                record = self._write_part(step, state)
            except Exception:
                # Without this the other ranks would wait for a part that never comes.
                self._finish_save(step, b"")
                raise
            saved = self._finish_save(step, record)
        if saved is not None:
            path, nbytes, steps = saved
            self._on_saved(SavedCheckpoint(step, path, nbytes, time.monotonic() - started, steps))

    def restore(self, state: dict[str, Any], *, to_device: bool = True) -> int:
        """Load the newest whole checkpoint into ``state`` on all ranks; returns its step, 0 when there is none.

        From memory, tensors that lay on an accelerator come back there; with ``to_device`` False they do not.

        ``$HOLDFAST_RESTORE_STEP`` on rank 0 bounds the step: newer checkpoints are set aside, for a rollback abandons
        the history they belong to. A checkpoint that fails its checks is set aside too and the next older one is taken.

        Raises:
            CheckpointMismatch: on all ranks, when a whole checkpoint does not fit this job's state or world size.
            CheckpointError: on all ranks, when it cannot be read, or when every checkpoint there was is damaged, or
                newer than the bound.
        """
        self._memory.end_copies()
        with phase("restore"), ended_if_superseded():
            if self._replay is None:
                step = self._restore(state, to_device)
            else:
                step = self._restore_for_replay(state, self._replay)
        resumed(step)
        return step

    def _persist_to(self, directory: str | os.PathLike[str] | None, storage: Storage | None) -> PersistTo | None:
        if storage is not None:
            return None  # an object of this process: no other can write there
        place = os.fspath(directory or environment.default_directory())
        return PersistTo(
            place=place if is_url(place) else os.path.abspath(place),
            steps_max=self._retention.steps_max,
            nbytes_max=self._retention.nbytes_max,
            mesh=self._mesh,
        )

    def _restore(self, state: dict[str, Any], to_device: bool) -> int:
        started, keyed = time.monotonic(), KeyedState(state, self._rank)
        at_most = self._ranks.agree_on_bound(environment.restore_step() if self._rank == 0 else None)
        in_memory, unusable = self._memory.common(self._ranks.all_gather, at_most), list[SealedStep]()
        may_come_back = partial(self._memory.may_come_back, unusable)
        newest = partial(self._choice.newest, newer_in_memory=self._memory.has_newer, may_come_back=may_come_back)
        former = OtherSize(self._memory, self._ranks, at_most) if not in_memory else None
        manifest = newest(any_in_memory=bool(in_memory or (former and former.steps)))
        on_disk = manifest.step if manifest is not None else 0
        if former and (kept := former.restore(keyed, None if manifest is None else _sealed(manifest))):
            self._log_restored(kept.step, f"memory, kept by {former.world_size} ranks,", started)
            self._memory.report_restored(kept.step, "memory", on_disk)
            self._memory.go_on_from(kept)
            return kept.step
        if former and former.steps and manifest is None:
            manifest = newest()
        while in_memory or manifest is not None:
            if manifest is not None and not (in_memory and in_memory[0].step >= manifest.step):
                if self._restore_saved(manifest, keyed):
                    self._log_restored(manifest.step, "disk", started)
                    self._memory.report_restored(manifest.step, "disk", on_disk)
                    self._memory.go_on_from(_sealed(manifest), from_disk=True)
                    return manifest.step
                manifest = newest(any_in_memory=bool(in_memory))
                continue
            kept = in_memory.pop(0)
            if self._restore_kept(kept, keyed, to_device):
                self._log_restored(kept.step, "memory", started)
                self._memory.report_restored(kept.step, "memory", on_disk)
                self._memory.go_on_from(kept)
                return kept.step
            unusable.append(kept)
            if not in_memory and manifest is None:
                manifest = newest()
        if at_most != 0:
            self._memory.start_over(unusable, environment.scratch(), former.why_not if former else "")
        self._memory.report_restored(0, "nothing", on_disk)
        self._memory.go_on_from(None)
        return 0

    def _restore_for_replay(self, state: dict[str, Any], settings: ReplaySettings) -> int:
        """Load the newest step on the disk, the same for all groups; this rank takes the place of one of the job's."""
        if settings.layers:
            return 0  # what was saved has more of them: the script's own beginning is the same for all groups
        started, keyed = time.monotonic(), KeyedState(state, self._place)
        while (manifest := self._choice.newest()) is not None:
            if self._restore_saved(manifest, keyed):
                self._log_restored(manifest.step, "disk", started)
                return manifest.step
        return 0

    def _log_restored(self, step: int, source: str, started: float) -> None:
        if self._rank == 0:
            log.info("restored step %d from %s in %.1f ms", step, source, (time.monotonic() - started) * 1e3)

    def _restore_saved(self, manifest: CheckpointManifest, keyed: KeyedState) -> bool:
        """Load a checkpoint on disk; False if it is damaged, and set aside.

        Raises CheckpointError on all ranks when it cannot be read or used by one of them.
        """
        verified: _Verified | None = None
        problem: CheckpointError | None = None
        try:
            verified = self._verify(manifest, keyed)
        except CheckpointError as error:
            problem = error
        verdict = self._ranks.agree_on_verdict(problem)
        if verdict is Readability.UNUSABLE:
            raise problem or CheckpointMismatch(f"step {manifest.step}: another rank cannot use it, see its log")
        if verdict is Readability.DAMAGED or verified is None:
            self._choice.set_aside(manifest.step, problem)
            return False
        verified.reader.apply(verified.items, verified.planner)
        keyed.load(verified.state_dict)
        return True

    def _restore_kept(self, kept: SealedStep, keyed: KeyedState, to_device: bool) -> bool:
        """Load a step from memory if every rank can; what is loaded is only views until all of them have it."""
        loaded: dict[str, Any] = {}
        problem: CheckpointError | None = None
        try:
            loaded = laid_out(self._memory.load(kept, to_device=to_device), keyed.state_dict())
        except (*UNUSABLE, CheckpointMismatch) as error:
            log.warning("step %d in memory cannot be used: %s", kept.step, error)
            problem = DamagedCheckpoint(str(error))
        if self._ranks.agree_on_verdict(problem) is not Readability.GOOD:
            return False
        keyed.load(loaded, borrowed=True)
        return True

    def _hold(self) -> None:
        if self._rank == 0 and isinstance(self._storage, DirectoryStorage | ObjectStorage):
            with ended_if_superseded():
                self._storage.hold()

    def _write_part(self, step: int, state: dict[str, Any]) -> bytes:
        self._hold()
        keyed = KeyedState(state, self._rank)
        writer = PartWriter(keyed.state_dict(), keyed.writes)
        name = f"rank-{self._rank:05d}.part"
        size = self._storage.write(step, name, writer.chunks())
        holds = tuple(sorted({keyed.space_of(key) for key in writer.keys}))
        part = CheckpointPart(
            name=name, size=size, index_offset=writer.index_offset, index_crc32=writer.index_crc32, holds=holds
        )
        record = msgspec.json.encode(part)
        if len(record) > PART_RECORD_BYTES:
            raise ValueError(
                f"a part's record takes {len(record)} bytes of {PART_RECORD_BYTES}: shorten the shard labels"
            )
        return record

    def _finish_save(self, step: int, record: bytes) -> tuple[str, int, tuple[int, ...]] | None:
        """Publish once all parts are written; return `_publish`'s answer on rank 0. An empty record: it failed."""
        records = self._ranks.gather(record, PART_RECORD_BYTES)
        failed = [rank for rank, record in enumerate(records) if not record]
        saved: tuple[str, int, tuple[int, ...]] | None = None
        if self._rank == 0:
            if failed:
                self._storage.discard(step)
            else:
                try:
                    saved = self._publish(step, records)
                except Exception:
                    self._ranks.broadcast(torch.tensor([0]))
                    raise
        blame = int(self._ranks.broadcast(torch.tensor([failed[0] if failed else -1])).item())
        if blame >= 0 and record:
            # If that is because a newer generation is there, this rank must end just as quietly.
            self._storage.claim()
            why = f"rank {blame} could not do its part, its log says why; older checkpoints are untouched"
            raise CheckpointError(f"step {step} was not saved: {why}")
        return saved

    def _publish(self, step: int, records: list[bytes]) -> tuple[str, int, tuple[int, ...]]:
        manifest = CheckpointManifest(
            step=step,
            generation=self._owner.generation,
            world_size=self._ranks.size,
            mesh=self._mesh,
            created_at=time.time(),
            parts=tuple(decode_part(record) for record in records),
        )
        path = self._storage.publish(manifest)
        self._storage.retain(self._retention._replace(certified_up_to=self._memory.certified_up_to()))
        return path, manifest.nbytes, tuple(sorted(self._storage.steps()))

    def _verify(self, manifest: CheckpointManifest, keyed: KeyedState) -> _Verified:
        """Plan the reads, read and check the bytes; the state is not touched."""
        refuse_other_shape(manifest, keyed, self._ranks.size, self._mesh)
        parts = [part for part in manifest.parts if keyed.spaces.intersection(part.holds)]
        reader = PartReader(self._storage, manifest.step, parts, keyed.wants)
        planner, state_dict = LoadPlanner(), keyed.state_dict()
        try:
            planner.set_up_planner(state_dict, reader.metadata())
            items = planner.create_local_plan().items
        except (RuntimeError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointMismatch(
                f"the checkpoint of step {manifest.step} does not fit this job's state: {error} It was saved "
                f"{shape_of(manifest)}: start with the model and mesh of then, or name another checkpoint directory"
            ) from error
        reader.fetch(items)
        return _Verified(reader, planner, items, state_dict)


def _sealed(manifest: CheckpointManifest) -> SealedStep:
    return SealedStep(generation=manifest.generation, step=manifest.step)


def _refuse_if_no_step(step: int) -> None:
    if step < 1:
        raise ValueError(f"step {step}: the first completed step is 1")
