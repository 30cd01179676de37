"""torch.distributed.checkpoint into the memory of the nodes, by one argument::

    dcp.save(state, storage_writer=trainer.storage_writer(step=step))  # or dcp.async_save

    reader = trainer.storage_reader()
    if reader.step:
        dcp.load(state, storage_reader=reader)

Every rank keeps all that its own plan had before DCP took out what other ranks write too: it restores from its own
node alone, be any other node lost, and each rank gets its own objects back (ADR 8). So a step can be loaded by a job
that is cut as it was when it was saved. For another mesh there is the disk.

Of tensors and of how they lie nothing is pickled. Values that are no tensors are kept as the planner's own bytes, and
read by the planner: those of DCP's are `torch.save` and `torch.load`.
"""

from __future__ import annotations

import io
import logging
import os
import threading
from functools import cache
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.trainer.checkpoint import environment, script_steps
from holdfast.trainer.checkpoint.agreement import RankGroup, Readability
from holdfast.trainer.checkpoint.errors import CheckpointError, CheckpointMismatch, DamagedCheckpoint
from holdfast.trainer.checkpoint.memory_tier import UNUSABLE, VAULT_VARIABLE, MemoryTier
from holdfast.trainer.dcp import dcp_layout
from holdfast.trainer.device.adapters import on_stream, stream_in_use
from holdfast.trainer.phases import phase, resumed
from holdfast.trainer.replay_run import replay

log = logging.getLogger("holdfast.trainer.checkpoint")

LAYOUT = "dcp"
SAVER_POLL_S = 0.05


class Memory:
    """The memory of this process, one for all writers and readers: the vault gets the places of tensors only once."""

    def __init__(self, name: ShardName, generation: int) -> None:
        self.tier = MemoryTier(name, generation)
        script_steps.of_this_process.are_kept |= self.tier.has_vault
        # `async_save` writes in another thread.
        self.turn = threading.Lock()
        self.plan = SavePlan([])
        self.saves = 0
        self._starts_over = False

    def keep(self, step: int, state: dict[str, Any]) -> bool:
        if self._starts_over:
            self.go_on_from(None)
        self.saves += 1
        return self.tier.keep(step, state)

    def go_on_from(self, sealed: SealedStep | None) -> None:
        self._starts_over = False
        self.tier.go_on_from(sealed)

    def found_nothing(self) -> None:
        """Note that no step in memory can be used. They are dropped when the job continues from something else."""
        self._starts_over = True


@cache
def _memory(name: ShardName, generation: int) -> Memory:
    return Memory(name, generation)


def memory(ranks: RankGroup) -> Memory:
    """Return the memory of this process's rank; raises CheckpointError if no vault was started for it."""
    owner = environment.owner()
    name = environment.shard_name(owner, ranks.rank, ranks.size)
    if name is None or not (os.environ.get(VAULT_VARIABLE) or replay()):
        raise CheckpointError(
            "this process has no vault to keep checkpoints in: start the script with `holdfast run`, or give DCP "
            "another storage (checkpoint_id=DIRECTORY)"
        )
    return _memory(name, owner.generation)


class VaultWriter(StorageWriter, AsyncStager):
    """Keeps one step. If the vault cannot, that is logged and training goes on; `kept` is True if it did.

    It stages for `async_save` too, which returns as soon as the vault has write-protected the state: this process
    copies nothing. Planning is waited for.
    """

    def __init__(self, step: int, memory: Memory) -> None:
        if step < 1:
            raise ValueError(f"step {step}: the first completed step is 1")
        self.step = step
        self.kept = False
        self._memory = memory
        # `async_save` writes in another thread, which has another current stream and device.
        self._stream = stream_in_use()
        self._plan = SavePlan([])
        self._saver: threading.Thread | None = None
        self._taken = threading.Event()

    def __reduce__(self) -> NoReturn:
        raise CheckpointError(
            "the vault copies the state out of the rank itself, no other process can have it saved: leave "
            "async_checkpointer_type at THREAD"
        )

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a step in memory is named by its number alone, `checkpoint_id` is not used."""

    def storage_meta(self) -> StorageMeta | None:
        # The first thing that a save asks for, in the thread that it runs in.
        self._saver = threading.current_thread()
        return None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: all ranks do the same."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Remember what this rank has; afterwards DCP assigns each value to one of the ranks that have it."""
        with self._memory.turn:
            # A planner that caches sends no plan where it is the last one again; older releases have none.
            if getattr(plan, "usable", True):
                self._memory.plan = plan
            self._plan = self._memory.plan
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Keep what this rank had planned; on return it may be changed."""
        try:
            with self._memory.turn, on_stream(self._stream):
                self.kept = self._memory.keep(self.step, _resolved(self._plan, planner))
        finally:
            self._taken.set()
        written: Future[list[WriteResult]] = Future()
        written.set_result([WriteResult(MetadataIndex(LAYOUT), 0, self.kept)])
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Warn if ranks could not keep the step; each rank has its own metadata beside its tensors already."""
        lacking = [rank for rank, (result,) in enumerate(results) if not result.storage_data]
        if lacking and replay() is None:
            log.warning(
                "step %d is not in memory: %d of %d ranks could not keep it", self.step, len(lacking), len(results)
            )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the state itself: the vault copies it."""
        return state_dict

    def synchronize_staging(self) -> None:
        """Wait until the state may be changed, or the save has failed before it came to the vault."""
        while not self._taken.wait(SAVER_POLL_S):
            if self._saver is not None and not self._saver.is_alive():
                return

    def close(self) -> None:
        """Do nothing: the stager holds nothing."""


class VaultReader(StorageReader):
    """The newest step that all ranks hold whole; `step` is 0 if there is none. All ranks make one, together."""

    def __init__(self, memory: Memory, ranks: RankGroup) -> None:
        self.step = 0
        self._memory = memory
        self._sealed: SealedStep | None = None
        self._tensors: dict[tuple[str, dcp_layout.Numbers], torch.Tensor] = {}
        self._objects: dict[str, bytes] = {}
        self._layout = dcp_layout.DcpLayout((), (), {})
        self._as_of = 0
        bound = ranks.agree_on_bound(environment.restore_step() if ranks.rank == 0 else None)
        with memory.turn:
            for sealed in memory.tier.common(ranks.all_gather, bound):
                if ranks.agree_on_verdict(self._open(sealed)) is Readability.GOOD:
                    self.step, self._sealed = sealed.step, sealed
                    memory.tier.report_restored(self.step, "memory")
                    resumed(self.step)
                    return
            memory.found_nothing()
            if bound == 0:
                memory.go_on_from(None)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a step in memory is named by its number alone, `checkpoint_id` is not used."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata of this rank's own shard."""
        if self._sealed is None:
            raise CheckpointError("no step is in the memory of all ranks: look at `step` first, and load from the disk")
        return self._layout.metadata()

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: all ranks do the same."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Check that this rank has every tensor of the plan.

        Raises CheckpointMismatch if it needs what other ranks hold; nothing has been loaded on any rank then. The same
        is a CheckpointError if a step was saved since this reader was made.
        """
        self._refuse_after_saves()
        for item in plan.items:
            place = item.storage_index.fqn, tuple(item.storage_index.offset or ())
            if item.type == LoadItemType.TENSOR and place not in self._tensors:
                raise CheckpointMismatch(
                    f"step {self.step} in memory has another part of {item.storage_index.fqn!r} for this rank than it "
                    "needs now: load with the mesh and placements of then, or from the disk"
                )
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        with phase("restore"), self._memory.turn:
            self._refuse_after_saves()
            for item in plan.items:
                key, offsets = item.storage_index.fqn, tuple(item.storage_index.offset or ())
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, io.BytesIO(self._objects[key]))
                    continue
                source = self._tensors[key, offsets]
                for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                    source = source.narrow(dim, start, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(source)
                planner.commit_tensor(item, target)
            self._memory.go_on_from(self._sealed)
        read: Future[None] = Future()
        read.set_result(None)
        return read

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    def _refuse_after_saves(self) -> None:
        # The tensors are views of memory that the vault takes for a later step.
        if self._memory.saves != self._as_of:
            raise CheckpointError(
                f"a step was saved since this reader found step {self.step}: load all that is needed of a reader "
                "before the next save, or make another reader"
            )

    def _open(self, sealed: SealedStep) -> CheckpointError | None:
        """Map a step's shard; return what is wrong with it, None if nothing is."""
        try:
            found = self._memory.tier.load(sealed)
        except UNUSABLE as error:
            log.warning("step %d in memory cannot be used: %s", sealed.step, error)
            return DamagedCheckpoint(str(error))
        if LAYOUT not in found:
            log.warning("step %d in memory was kept by a Checkpointer, which alone can restore it", sealed.step)
            return CheckpointMismatch(f"step {sealed.step} was not kept by this writer")
        self._as_of = self._memory.saves
        self._layout = dcp_layout.decode(found[LAYOUT])
        places = ((chunk.key, chunk.box.offsets) for chunk in self._layout.chunks)
        self._tensors = dict(zip(places, found.get("tensors", ()), strict=True))
        objects = found.get("objects", {})
        self._objects = {key: objects[str(number)] for number, key in enumerate(self._layout.objects)}
        return None


def _resolved(plan: SavePlan, planner: SavePlanner) -> dict[str, Any]:
    """Return all that a plan writes, as a state that the vault can keep."""
    tensors: list[tuple[WriteItem, torch.Tensor]] = []
    objects: list[tuple[WriteItem, bytes]] = []
    for item in plan.items:
        data = planner.resolve_data(item)
        if isinstance(data, torch.Tensor):
            tensors.append((item, data.detach()))
        else:
            objects.append((item, data.getvalue()))
    layout = dcp_layout.encode((item for item, _ in tensors), (item for item, _ in objects), plan.planner_data)
    state: dict[str, Any] = {LAYOUT: layout}
    # An empty list would be stored as a value. A list of bytes would be stored as one value, pickled.
    if tensors:
        state["tensors"] = [tensor for _, tensor in tensors]
    if objects:
        state["objects"] = {str(number): value for number, (_, value) in enumerate(objects)}
    return state
