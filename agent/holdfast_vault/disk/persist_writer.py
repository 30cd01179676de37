"""The process that writes one step of a node's ranks to the disk: `python -m holdfast_vault.disk`.

It is a separate process, so that a store's client, a hanging mount or a full disk cannot harm the vault and the shards
in its memory. It may be killed at any time. What it has written then counts for nothing, and the next publisher or the
next generation removes it.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Iterator

import numpy as np
import structlog

from holdfast.daemon.logs import log_to_stderr
from holdfast.node.kernel import die_with_parent
from holdfast.node.users.user_rights import become
from holdfast.node.vault import seals
from holdfast.node.vault.messages import ShardName
from holdfast.node.vault.seals import BrokenSeal, Bytes
from holdfast.trainer.checkpoint.errors import CheckpointError, Superseded
from holdfast.trainer.checkpoint.layout.manifest import CheckpointPart
from holdfast.trainer.checkpoint.layout.recipe import PIECE_BYTES, SealedPart, part_name, recipe_of
from holdfast.trainer.checkpoint.storage.directory import VAULT, Storage
from holdfast.trainer.checkpoint.storage.places import open_storage
from holdfast.trainer.checkpoint.storage.workplace import Owner
from holdfast_vault.disk.persist_publish import publish, write_record
from holdfast_vault.disk.persist_task import (
    PersistOutcome,
    PersistTask,
    SealBroken,
    ShardsWritten,
    ShardToWrite,
    StepDropped,
    StepPublished,
    TaskSuperseded,
    decode_task,
    to_line,
)
from holdfast_vault.pacing import Pacing, TokenBucket
from holdfast_vault.rank_ledgers import RankLedgers

NICE = 19

log = structlog.get_logger(__name__)


class _Damage(Exception):
    """A rank's shard is not what was sealed."""

    def __init__(self, rank: int, detail: str) -> None:
        super().__init__(detail)
        self.rank = rank


def run(task: PersistTask) -> Iterator[PersistOutcome]:
    """Write the steps of a task, and yield the outcome of each."""
    reported: set[int] = set()
    try:
        for outcome in _outcomes(task):
            if isinstance(outcome, StepPublished | StepDropped):
                reported.add(outcome.step)
            yield outcome
    except Superseded as error:
        yield TaskSuperseded(reason=str(error))
    except (CheckpointError, OSError) as error:
        if task.step in reported:
            log.warning("what other nodes have still to write is not looked at any more", reason=str(error))
        else:
            yield StepDropped(step=task.step, reason=str(error))


def _outcomes(task: PersistTask) -> Iterator[PersistOutcome]:
    began = time.monotonic()
    owner = Owner(task.job, task.submitted_ms, task.generation)
    storage: Storage = open_storage(task.to.place, owner=owner, prefix=VAULT)
    try:
        pacing = _pacing(task)
        write_record(storage, task.step, [_write(storage, task, shard, pacing) for shard in task.shards])
    except _Damage as damage:
        yield SealBroken(rank=damage.rank, detail=str(damage))
        yield _dropped(storage, task.step, str(damage))
    except (CheckpointError, OSError) as error:
        if isinstance(error, Superseded):
            raise
        yield _dropped(storage, task.step, str(error))
    else:
        yield ShardsWritten()
    if task.shards[0].rank == 0:
        yield from publish(storage, task, began)


def _write(storage: Storage, task: PersistTask, shard: ShardToWrite, pacing: Pacing) -> CheckpointPart:
    recipe = recipe_of(shard.index)
    if recipe is None:
        raise CheckpointError(
            f"step {task.step} of rank {shard.rank} was not kept by a Checkpointer: only that can be written to a disk"
        )
    memory = _memory(shard)
    part = SealedPart(recipe, shard.objects, memory)
    name = part_name(shard.rank)
    size = storage.write(task.step, name, _paced(part.chunks(), pacing))
    try:
        # Afterwards: what was read since it was sealed is what is checked.
        seals.check(shard.seal, (shard.index, shard.objects), memory, f"step {task.step} of rank {shard.rank}")
    except BrokenSeal as error:
        raise _Damage(shard.rank, str(error)) from error
    return part.record(name, size)


def _memory(shard: ShardToWrite) -> Bytes:
    mapping = mmap.mmap(shard.descriptor, max(shard.nbytes, 1), prot=mmap.PROT_READ)
    memory: Bytes = np.frombuffer(mapping, np.uint8)[: shard.nbytes]
    return memory


def _paced(chunks: Iterator[memoryview | bytes], pacing: Pacing) -> Iterator[memoryview | bytes]:
    nbytes = PIECE_BYTES  # so that it begins with a pause
    for chunk in chunks:
        # A state may have thousands of small values: a pause for each would take far too long.
        if nbytes >= PIECE_BYTES:
            while pause_s := pacing.pause_s(time.monotonic()):
                time.sleep(pause_s)
            nbytes = 0
        if wait_s := pacing.wait_s(len(chunk), time.monotonic()):
            time.sleep(wait_s)
        nbytes += len(chunk)
        yield chunk


def _pacing(task: PersistTask) -> Pacing:
    ledgers = RankLedgers()
    for shard, path in zip(task.shards, task.ledgers, strict=True):
        name = ShardName(job=task.job, submitted_ms=task.submitted_ms, world_size=task.world_size, rank=shard.rank)
        ledgers.watch(name, path)
    return Pacing(TokenBucket(task.bytes_per_s, PIECE_BYTES, time.monotonic()), ledgers.are_in_collective)


def _dropped(storage: Storage, step: int, reason: str) -> StepDropped:
    # Without this node's part the other nodes' parts are of no use, and they must not fill the disk.
    storage.discard(step)
    return StepDropped(step=step, reason=reason)


def main() -> None:
    """Entry point. The task comes on stdin, outcomes go out on stdout."""
    vault = int(sys.argv[1])
    die_with_parent(vault)
    log_to_stderr("holdfast_vault.disk.persist_writer")
    os.nice(NICE)
    task = decode_task(sys.stdin.buffer.read())
    if task.user is not None:
        become(task.user, vault)
    for outcome in run(task):
        sys.stdout.buffer.write(to_line(outcome))
        sys.stdout.buffer.flush()
