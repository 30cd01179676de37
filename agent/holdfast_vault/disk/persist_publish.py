"""Publishing of the steps that all nodes of a job have written, and removal of those that will never be complete.

Each node records what it has written beside its parts. The node with rank 0 looks for these records as long as a step
is waited for. So no node needs another node's address, or the bus, to bring a step to the disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec
import structlog

from holdfast.decoding import UNREADABLE
from holdfast.trainer.checkpoint.errors import CheckpointError, DamagedCheckpoint, Superseded
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest, CheckpointPart
from holdfast.trainer.checkpoint.storage.directory import Storage
from holdfast.trainer.checkpoint.storage.folder import Folder
from holdfast.trainer.checkpoint.storage.retention import Retention
from holdfast_vault.disk.persist_plan import plan_publishing
from holdfast_vault.disk.persist_task import PersistOutcome, PersistTask, StepDropped, StepPublished

POLL_S_MIN, POLL_S_MAX = 0.25, 8.0
WAIT_S_MAX = 1800.0
"""For nodes that have not written a step yet. Where no next step comes, as at a job's end, it may be for good."""
_RECORD = "written-by-"

log = structlog.get_logger(__name__)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[CheckpointPart, ...]).decode


def write_record(storage: Storage, step: int, parts: Sequence[CheckpointPart]) -> None:
    """Record the parts that a node has written, all that it has."""
    storage.write(step, f"{_RECORD}{parts[0].name}.json", [_encode(parts)])


class _Records:
    """The parts that are written, by step. A record is read once, and counts for as long as it is there."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: dict[int, dict[str, tuple[CheckpointPart, ...]]] = {}

    def parts(self, step: int) -> dict[str, CheckpointPart]:
        """Return those of one step that are there in full size, by name."""
        folder, before = self._storage.staged(step), self._read.pop(step, {})
        try:
            sizes = folder.sizes()
        except DamagedCheckpoint:
            return {}  # removed meanwhile
        self._read[step] = {
            name: before.get(name) or _parts_in(folder, name) for name in sizes if name.startswith(_RECORD)
        }
        parts = [part for parts in self._read[step].values() for part in parts]
        # A node that was frozen may write its record after all that the others wrote was given up and removed.
        return {part.name: part for part in parts if sizes.get(part.name) == part.size}


def _parts_in(folder: Folder, record: str) -> tuple[CheckpointPart, ...]:
    try:
        return _decode(folder.get(record))
    except (DamagedCheckpoint, *UNREADABLE):
        return ()  # removed, or not whole yet: it is looked at again


def publish(storage: Storage, task: PersistTask, began: float) -> Iterator[PersistOutcome]:
    """Publish until nothing is waited for. The vault ends it when the next step is due."""
    records, poll_s = _Records(storage), POLL_S_MIN
    while True:
        storage.claim()  # a newer generation may have them meanwhile
        parts = {step: records.parts(step) for step in storage.unpublished()}
        found = plan_publishing({step: task.world_size - len(of_step) for step, of_step in parts.items()})
        if found.publish is not None and _is_there(storage, found.publish, task.generation):
            storage.discard(found.publish)  # saved by the script itself
        elif found.publish is not None:
            yield _published(storage, task, found.publish, parts[found.publish], began)
        is_over = time.monotonic() > began + WAIT_S_MAX
        for step in found.drop + (found.waiting if is_over else ()):
            storage.discard(step)
            missing = task.world_size - len(parts[step])
            yield StepDropped(step=step, reason=f"{missing} of {task.world_size} ranks have not written it")
        if is_over or not found.waiting:
            return
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, POLL_S_MAX)


def _published(
    storage: Storage, task: PersistTask, step: int, parts: dict[str, CheckpointPart], began: float
) -> StepPublished:
    manifest = CheckpointManifest(
        step=step,
        generation=task.generation,
        world_size=task.world_size,
        mesh=task.to.mesh,
        created_at=time.time(),
        parts=tuple(parts[name] for name in sorted(parts)),
    )
    path = storage.publish(manifest)
    took_s = time.monotonic() - began
    try:
        storage.retain(Retention(task.to.steps_max, task.to.nbytes_max, task.certified_up_to))
    except (CheckpointError, OSError) as error:
        if isinstance(error, Superseded):
            raise
        log.warning("older steps stay for now", reason=str(error))
    steps = tuple(sorted(storage.steps()))
    return StepPublished(step=step, path=path, nbytes=manifest.nbytes, took_s=took_s, steps=steps)


def _is_there(storage: Storage, step: int, generation: int) -> bool:
    """Return True if this generation has published it already; what an earlier one has is of an abandoned past."""
    try:
        return step in storage.steps() and storage.manifest(step).generation == generation
    except CheckpointError:
        return False
