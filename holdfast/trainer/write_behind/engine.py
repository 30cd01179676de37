"""A rank's saves on their way: into the vault while the script waits, then to the disk while it goes on.

A save is answered when the vault has all of it sealed, in memory that the rank's end does not touch. A thread writes
the file from that copy. One save at a time is ahead of the disk: the next one waits for it first.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from holdfast.node.vault.messages import SealedStep
from holdfast.trainer.checkpoint.memory_tier import UNUSABLE, MemoryTier
from holdfast.trainer.checkpoint.script_steps import ScriptSteps
from holdfast.trainer.phases import phase
from holdfast.trainer.write_behind import disk_writes
from holdfast.trainer.write_behind.journal import Journal
from holdfast.trainer.write_behind.saved_files import JournalEntry, SavedFile, Saves, Verdict, encode
from holdfast.trainer.write_behind.waiting_rules import Awaited, awaited

log = logging.getLogger("holdfast.trainer.checkpoint")

LAYOUT = "write_behind"
TENSORS = "tensors"
AFTER_S_MAX = 600.0
"""Longest wait for files of other ranks."""
_POLL_S = 0.02


class NotOnDisk(OSError):
    """A save that was answered has not reached the disk."""


@dataclass
class OnWay:
    """A save between its answer and its file."""

    awaited: Awaited
    sealed: SealedStep | None = None
    thread: threading.Thread | None = None
    done: threading.Event = field(default_factory=threading.Event)
    error: OSError | None = None

    @property
    def is_written_here(self) -> bool:
        """True in the thread that writes it."""
        return self.thread is not None and self.thread.ident == threading.get_ident()


class WriteBehind:
    """The saves of this process. `on_way` is None while the disk has all of them, or the script knows it has not."""

    def __init__(
        self,
        tier: MemoryTier,
        journal: Journal,
        generation: int,
        world_size: int,
        last_step: int = 0,
        *,
        script_steps: ScriptSteps,
    ) -> None:
        """`last_step` is the number of the newest save in memory. `script_steps` have the memory, if they are kept."""
        self._tier = tier
        self._script_steps = script_steps
        self._journal = journal
        self._generation = generation
        self._world_size = world_size
        self._step = last_step
        self._turn = threading.Lock()
        self._pid = os.getpid()
        self.on_way: OnWay | None = None

    @property
    def is_own_process(self) -> bool:
        """False in a fork of the rank, such as a worker of a loader: it saves as if nothing were here."""
        return os.getpid() == self._pid

    def keep(
        self,
        files: Sequence[SavedFile],
        tensors: Sequence[torch.Tensor],
        names: Sequence[str] = (),
        others: Sequence[str] = (),
    ) -> bool:
        """Keep the contents of these files as they are now; on return the tensors may be changed, and the files appear
        soon. `names` are other paths that lead to them, `others` are files of other ranks that belong to the save.

        Return False if the vault has no room or is away, or the script keeps its steps there: then the caller writes
        them. Raises NotOnDisk if the save before could not be written.
        """
        with self._turn:
            self.settle()
            if self._script_steps.are_kept:
                return False
            saved_at_ns = time.time_ns()
            sealed = SealedStep(generation=self._generation, step=self._step + 1)
            state: dict[str, Any] = {LAYOUT: encode(Saves(files=tuple(files), saved_at_ns=saved_at_ns))}
            if tensors:
                state[TENSORS] = list(tensors)
            with phase("checkpoint"):
                if not self._tier.keep(sealed.step, state):
                    return False
                self._step = sealed.step
                try:
                    # It waits for the seal: all of it is in the vault's memory now.
                    copy = self._tier.load(sealed).get(TENSORS, [])
                    self._journal.answered(self._entry(sealed, files, saved_at_ns))
                except (*UNUSABLE, OSError) as error:
                    log.warning("a save goes straight to the disk: %s", error)
                    return False
            self._begin(sealed, files, copy, names, others)
            return True

    def settle(self, *, raises: bool = True) -> None:
        """Wait until the disk has everything. Raises NotOnDisk if the disk refused, in the first call that can
        raise."""
        on_way = self.on_way
        if on_way is None or on_way.is_written_here or not self.is_own_process:
            return
        if not on_way.done.is_set():
            with phase("checkpoint"):
                on_way.done.wait()
        if raises and on_way.error is not None:
            self.on_way = None
            raise NotOnDisk(on_way.error.errno, f"a checkpoint has not reached the disk: {_reason(on_way.error)}")

    def close_in_fork(self) -> None:
        """Forget what is on its way: the thread that writes it is not in this process."""
        self.on_way = None

    def _entry(self, sealed: SealedStep, files: Sequence[SavedFile], saved_at_ns: int) -> JournalEntry:
        return JournalEntry(
            generation=sealed.generation,
            step=sealed.step,
            world_size=self._world_size,
            saved_at_ns=saved_at_ns,
            files={file.path: file.before for file in files},
        )

    def _begin(
        self,
        sealed: SealedStep,
        files: Sequence[SavedFile],
        copy: list[torch.Tensor],
        names: Sequence[str],
        others: Sequence[str],
    ) -> None:
        on_way = OnWay(awaited((*(file.path for file in files), *names, *others)), sealed)
        # Not a daemon: the process ends when the file is there.
        on_way.thread = threading.Thread(
            target=self._write, args=(on_way, files, copy, others), name="holdfast-write-behind"
        )
        self.on_way = on_way
        on_way.thread.start()

    def _write(
        self, on_way: OnWay, files: Sequence[SavedFile], copy: list[torch.Tensor], others: Sequence[str]
    ) -> None:
        # Nothing here may log or import: the thread that waits for this one may hold the lock of either.
        try:
            for file in files:
                await_files(file.after)
                outcome = disk_writes.publish(file, copy)
                if outcome is not Verdict.WRITE:
                    tell(f"{file.path} is not written: {outcome.value}")
            self._journal.written()
            await_files(others)
        except OSError as error:
            # It stays on its way, and the script waits for it, until the error was raised.
            on_way.error = error
            tell(f"{[file.path for file in files]} did not reach the disk: {_reason(error)}. It stays in memory")
        else:
            self.on_way = None
        finally:
            on_way.done.set()


def await_files(paths: Sequence[str]) -> None:
    """Wait until all these files are there. Raises OSError: one does not come."""
    until = time.monotonic() + AFTER_S_MAX
    for path in paths:
        while not Path(path).exists():
            if time.monotonic() > until:
                raise FileNotFoundError(2, f"it would declare a checkpoint complete that lacks {path}")
            time.sleep(_POLL_S)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def tell(text: str) -> None:
    """Write a line to the process's error output, without any lock."""
    os.write(2, f"[holdfast] {text}\n".encode(errors="backslashreplace"))
