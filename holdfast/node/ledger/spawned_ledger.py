"""The ledger of a rank whose script trains in processes that it spawns: one of them writes it, the first to step.

The rank itself only waits for them, and its ledger has no steps. What goes on in it is the rank's: collectives of the
spawned processes are none of the job's, and are not written.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from pathlib import Path

from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.ledger.ledger_layout import (
    COLLECTIVE,
    COLLECTIVE_OFFSETS,
    FILE_BYTES,
    START,
    START_OFFSETS,
    STATE,
    STATE_OFFSETS,
    Source,
)


class SpawnedLedger(LedgerWriter):
    """The side of a spawned process. It writes into private memory until its first step, and then into the rank's
    ledger, unless another process has stepped first.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Begin beside the rank's ledger at `path`."""
        self.path = Path(path)
        self._begin_in(mmap.mmap(-1, FILE_BYTES), time.time_ns())
        self._begun: tuple[int, Source, str, bool] | None = None
        self._is_claimed = False

    def complete_step(
        self,
        step: int | None = None,
        loss: float | None = None,
        grad_norm: float | None = None,
        tokens: int | None = None,
        at_ns: tuple[int, int] | None = None,
    ) -> None:
        if not self._is_claimed:
            self._is_claimed = True
            self._claim()
        super().complete_step(step, loss, grad_norm, tokens, at_ns)

    def begin_steps(self, first: int, source: Source, name: str = "", *, is_known: bool = True) -> None:
        self._begun = first, source, name, is_known
        super().begin_steps(first, source, name, is_known=is_known)

    def enter_collective(self, name: bytes) -> None:
        """Write nothing."""

    def leave_collective(self) -> None:
        """Write nothing."""

    def _claim(self) -> None:
        """Go over to the rank's ledger, if no other process has: whose lock ends with it."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return  # the rank is gone, or has another user's rights
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shared = mmap.mmap(descriptor, FILE_BYTES)
        except OSError:
            os.close(descriptor)
            return
        # With it goes the lock.
        self._descriptor = descriptor
        self._map = shared
        self._start_sequence = max(START.unpack_from(shared, place)[0] for place in START_OFFSETS)
        self._collective_sequence = max(COLLECTIVE.unpack_from(shared, place)[0] for place in COLLECTIVE_OFFSETS)
        step, started_ns, started_mono_ns = self._step, self._step_started_ns, self._step_started_mono_ns
        take_over(self, is_newer=True)
        self._step_started_ns, self._step_started_mono_ns = started_ns, started_mono_ns
        if self._begun is not None and not self._steps_done:
            first, source, name, is_known = self._begun
            super().begin_steps(first, source, name, is_known=is_known)
        elif not self._steps_done:
            self._step = step


def take_over(ledger: LedgerWriter, *, is_newer: bool = False) -> None:
    """Go on from what another process has written into this ledger since, if it has (or `is_newer`)."""
    states = (STATE.unpack_from(ledger._map, place) for place in STATE_OFFSETS)
    newest = max((state for state in states if state[0] == state[-1]), default=None, key=lambda state: state[0])
    if newest is None or not (is_newer or newest[0] > ledger._sequence):
        return
    ledger._sequence, ledger._step, ledger._steps_done, ledger._step_started_ns = newest[:4]
    ledger._first_step_ns = newest[5]
    ledger._loss, ledger._grad_norm, ledger._tokens = newest[8:11]
    ledger._flags = newest[12]
