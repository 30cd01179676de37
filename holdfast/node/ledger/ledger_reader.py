"""Reads a rank's ledger, as any process but the rank does; `ledger_file.py` describes how it stays consistent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast.node.ledger.ledger_layout import (
    COLLECTIVE,
    COLLECTIVE_OFFSETS,
    FILE_BYTES,
    HAS_GRAD_NORM,
    HAS_LOSS,
    HAS_TOKENS,
    HEADER,
    IS_NUMBERED,
    MAGIC,
    NO_START,
    PHASE_OF_NUMBER,
    RECORDS_BYTES,
    RING_OFFSET,
    RING_STEPS,
    RUNNING,
    SOURCE_OF_NUMBER,
    START,
    START_OFFSETS,
    STATE,
    STATE_OFFSETS,
    STEP,
    VERSION,
    CollectiveState,
    LedgerError,
    LedgerSnapshot,
    Phase,
    Source,
    StepRecord,
    newest,
    text_of,
)
from holdfast.node.ranks_file import open_ranks_file

READ_ATTEMPTS_MAX = 64


class LedgerReader:
    """Anyone else's side: it reads with system calls, so that a file cut short raises instead of ending the process."""

    def __init__(self, path: str | os.PathLike[str], steps_read: int = 0) -> None:
        """Open the ledger at `path`; its first `steps_read` steps are known already. Raises FileNotFoundError: there is
        none (yet); LedgerError: it is cut short, no ledger, or of a version that this release cannot read.
        """
        self.path = Path(path)
        try:
            self._descriptor = open_ranks_file(self.path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be opened: {error.strerror}") from error
        self.steps_read = steps_read
        try:
            size = os.fstat(self._descriptor).st_size
            head = os.pread(self._descriptor, HEADER.size, 0)
            if len(head) < HEADER.size or head[: len(MAGIC)] != MAGIC:
                raise LedgerError(f"{self.path} is no ledger: it does not begin with {MAGIC.decode()}")
            _, version, file_bytes, self.pid, self.rank, self.generation, self.created_ns = HEADER.unpack(head)
            if version != VERSION:
                raise LedgerError(
                    f"{self.path} has ledger version {version}, this release reads {VERSION}: "
                    "restart the job's ranks with the node's present release"
                )
            if file_bytes != FILE_BYTES or size < FILE_BYTES:
                raise LedgerError(f"{self.path} is cut short: {size} of {FILE_BYTES} bytes")
        except BaseException:
            os.close(self._descriptor)
            raise

    def snapshot(self) -> LedgerSnapshot:
        """Return the rank's state. Raises LedgerError: the file was cut short, or many attempts met no whole record."""
        for _ in range(READ_ATTEMPTS_MAX):
            first = self._read(0, RECORDS_BYTES)
            second = self._read(0, RECORDS_BYTES)
            state = newest(first, second, STATE, STATE_OFFSETS)
            collective = newest(first, second, COLLECTIVE, COLLECTIVE_OFFSETS)
            start = newest(first, second, START, START_OFFSETS)
            if state is not None and collective is not None:
                return self._snapshot(state, collective, start or NO_START)
        raise LedgerError(
            f"{self.path} had no whole record in {READ_ATTEMPTS_MAX} attempts: is something else writing it?"
        )

    def new_steps(self) -> tuple[list[StepRecord], int]:
        """Return the steps completed since the last call, oldest first, and how many were overwritten before that.
        Raises LedgerError: the file was cut short, or many attempts met no whole record.
        """
        count = self.snapshot().steps_done
        first = max(self.steps_read, count - RING_STEPS)
        missed = first - self.steps_read
        ring = self._read(RING_OFFSET, RING_STEPS * STEP.size) if first < count else b""
        again = self._read(RING_OFFSET, RING_STEPS * STEP.size) if first < count else b""
        steps: list[StepRecord] = []
        for index in range(first, count):
            place = index % RING_STEPS * STEP.size
            entry = ring[place : place + STEP.size]
            head, step, ended, duration, loss, grad_norm, tokens, flags, _, tail = STEP.unpack(entry)
            if head != index + 1 or tail != head or entry != again[place : place + STEP.size]:
                missed += 1
                continue
            steps.append(
                StepRecord(
                    step=step,
                    ended_ns=ended,
                    duration_ns=max(0, duration),
                    loss=loss if flags & HAS_LOSS else None,
                    grad_norm=grad_norm if flags & HAS_GRAD_NORM else None,
                    tokens=tokens if flags & HAS_TOKENS else None,
                )
            )
        self.steps_read = count
        return steps, missed

    def close(self) -> None:
        os.close(self._descriptor)

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) < size:
            raise LedgerError(f"{self.path} was cut short while it was read, at {offset + len(data)} bytes")
        return data

    def _snapshot(self, state: tuple[Any, ...], collective: tuple[Any, ...], start: tuple[Any, ...]) -> LedgerSnapshot:
        _, first_step, source, is_known, source_name, _ = start
        _, step, done, step_start, phase_start, first, changed, code, loss, norm, tokens, phase, flags, name, _ = state
        _, entered, entered_ns, left_ns, in_flight, _, collective_name, _ = collective
        return LedgerSnapshot(
            pid=self.pid,
            rank=self.rank,
            generation=self.generation,
            step=step,
            steps_done=done,
            step_started_ns=step_start,
            phase=PHASE_OF_NUMBER.get(phase, Phase.OTHER),
            phase_name=text_of(name),
            phase_started_ns=phase_start,
            first_step_ns=first,
            changed_ns=changed,
            exit_code=None if code == RUNNING else code,
            loss=loss if flags & HAS_LOSS else None,
            grad_norm=norm if flags & HAS_GRAD_NORM else None,
            tokens=tokens if flags & HAS_TOKENS else None,
            is_numbered=bool(flags & IS_NUMBERED),
            first=first_step if source else None,
            source=SOURCE_OF_NUMBER.get(source, Source.NONE),
            source_name=text_of(source_name),
            is_start_known=bool(is_known),
            collective=CollectiveState(
                name=text_of(collective_name),
                entered=entered,
                in_flight=in_flight,
                entered_ns=entered_ns,
                left_ns=left_ns,
            ),
        )
