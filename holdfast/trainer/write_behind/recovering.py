"""After a restart: what the ranks had saved reaches the disk before any of them looks there."""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from holdfast.node.rank_variables import STORE_PREFIX
from holdfast.node.vault.messages import SealedStep
from holdfast.trainer.checkpoint.memory_tier import UNUSABLE, MemoryTier
from holdfast.trainer.phases import phase
from holdfast.trainer.write_behind import disk_writes
from holdfast.trainer.write_behind.disk_state import state_of
from holdfast.trainer.write_behind.engine import LAYOUT, TENSORS
from holdfast.trainer.write_behind.journal import Journal
from holdfast.trainer.write_behind.saved_files import (
    DiskState,
    JournalEntry,
    SavedFile,
    Verdict,
    decode,
    lost_paths,
    recovery,
)

log = logging.getLogger("holdfast.trainer.checkpoint")

MEET_S = 120.0
"""Longest wait for the other ranks to have written what they had."""
KEYS = "holdfast/memory_checkpoints"
_POLL_S = 0.01


class Recovered(NamedTuple):
    step: int = 0
    """Number of the newest save in memory."""
    last: tuple[SavedFile, ...] = ()
    """Files that declare a checkpoint complete: they go to the disk when the other ranks' files are there."""
    tensors: tuple[torch.Tensor, ...] = ()


def recover(tier: MemoryTier, journal: Journal) -> Recovered:
    """Write the last save of this rank, if it is in memory only. A save that is lost is reported.

    Raises OSError: the journal or the disk fails.
    """
    before = journal.open()
    with phase("restore"):
        steps = tier.sealed()
        sealed = steps[0] if steps else None
        found = recovery((sealed.generation, sealed.step) if sealed is not None else None, before)
        if found.lost and before is not None:
            why = "the node's vault does not answer" if steps is None else "no vault of the job has it"
            _report_lost(before.files, before.saved_at_ns, why)
        if sealed is None:
            return Recovered()
        return _write(tier, sealed, before) if found.writes else Recovered(sealed.step)


def complete(recovered: Recovered, journal: Journal) -> None:
    """Write the files that declare checkpoints complete, once all ranks have written the others. Raises OSError."""
    for file in recovered.last:
        missing = [path for path in file.after if not os.path.exists(path)]
        if missing:
            log.error("the checkpoint of %s is lost: it lacks %s, which other ranks had saved", file.path, missing)
        else:
            _publish(file, recovered.tensors)
    journal.written()


def meet(environment: Mapping[str, str], size: int, key: str) -> None:
    """Wait until all ranks have come to `key`: what one of them looks at may have been saved by another.

    They meet in the generation's store, without a process group.
    """
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if size < 2 or not address or not port or environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    until = time.monotonic() + MEET_S
    with phase("rendezvous"):
        store = TCPStore(
            address, int(port), is_master=False, wait_for_workers=False, timeout=datetime.timedelta(seconds=MEET_S)
        )
        ours = PrefixStore(environment.get(STORE_PREFIX, ""), store)
        arrived = ours.add(f"{KEYS}/{key}", 1)
        while arrived < size:
            if time.monotonic() > until:
                log.warning("only %d of %d ranks use memory checkpoints: import it in all of them", arrived, size)
                return
            time.sleep(_POLL_S)
            arrived = ours.add(f"{KEYS}/{key}", 0)


def _write(tier: MemoryTier, sealed: SealedStep, before: JournalEntry | None) -> Recovered:
    try:
        state = tier.load(sealed)
    except UNUSABLE as error:
        if before is not None and before.age == (sealed.generation, sealed.step):
            _report_lost(before.files, before.saved_at_ns, str(error))
        return Recovered(sealed.step)
    if LAYOUT not in state:
        log.warning("what is in memory was kept by a Checkpointer or a storage writer: use one of them in a job")
        return Recovered(sealed.step)
    files, tensors = decode(state[LAYOUT]).files, tuple(state.get(TENSORS, ()))
    for file in files:
        disk_writes.remove_parts(file.path)
        if not file.after:
            _publish(file, tensors)
    return Recovered(sealed.step, tuple(file for file in files if file.after), tensors)


def _publish(file: SavedFile, tensors: Sequence[torch.Tensor]) -> None:
    started = time.monotonic()
    outcome = disk_writes.publish(file, tensors)
    if outcome is Verdict.WRITE:
        took_ms = (time.monotonic() - started) * 1e3
        log.warning("%s is back from memory: %d bytes in %.0f ms", file.path, file.nbytes, took_ms)
    else:
        log.warning("%s is not taken from memory: %s", file.path, outcome.value)


def _report_lost(files: Mapping[str, DiskState | None], saved_at_ns: int, why: str) -> None:
    at = datetime.datetime.fromtimestamp(saved_at_ns / 1e9, datetime.UTC)
    for path in lost_paths(files, {path: state_of(path) for path in files}):
        log.error(
            "%s as it was saved at %s is lost: it had not reached the disk, and %s. %s",
            path,
            at.strftime("%Y-%m-%d %H:%M:%S UTC"),
            why,
            "The one before it is there" if files[path] is not None else "There is none before it",
        )
