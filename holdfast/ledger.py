"""The ledger: a small mapped file in which a rank notes where it stands, readable by others even while it hangs.

One writer (the rank), any number of readers, no locks and no system calls on the writing side. Layout of version 1,
little-endian, offsets in bytes:

====== ===== ==========================================================================================
offset bytes content
====== ===== ==========================================================================================
0      48    header: magic ``HFLEDGER``, version u32, file bytes u32, pid i64, rank i64, generation i64,
             created i64 (Unix ns); written once, before the file gets its name
64     128   state record, slot 0
192    128   state record, slot 1
320    80    collective record, slot 0
448    80    collective record, slot 1
1024   18432 ring of the last 256 steps, 72 bytes each, at index modulo 256
====== ===== ==========================================================================================

State record: sequence u64, step i64, steps done i64, then Unix ns i64 each: step start, phase start, first step
completed (0: not yet), last change; exit code i64 (-1: runs); loss f64, gradient norm f64, tokens i64; phase u16,
flags u16, phase name 28 bytes (UTF-8, zero-padded); the same sequence u64 again.
Collective record: sequence u64, collectives entered u64, entered i64 and left i64 (Unix ns), in flight u32, reserved
u32, name 32 bytes; the same sequence u64 again.
Ring entry: index + 1 u64, step i64, end i64 (Unix ns), duration i64 (ns), loss f64, gradient norm f64, tokens i64,
flags u32, reserved u32; index + 1 u64 again.

Consistency is a seqlock that needs no retry on the writer's side: each record is written in ascending order by one C
call under the interpreter lock, its sequence first and last, alternating between two slots. So a rank killed in the
middle of a write leaves the previous record whole. A reader copies the records twice; a slot counts when both copies
agree and its two sequences are equal. Stores must become visible in program order, as on x86-64.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec

MAGIC = b"HFLEDGER"
VERSION = 1
RING_STEPS = 256
FILE_BYTES = 20_480
READ_ATTEMPTS_MAX = 64

_HEADER = struct.Struct("<8sIIqqqq")
_STATE = struct.Struct("<QqqqqqqqddqHH28sQ")
_COLLECTIVE = struct.Struct("<QQqqII32sQ")
_STEP = struct.Struct("<QqqqddqIIQ")
_STATE_OFFSETS = (64, 192)
_COLLECTIVE_OFFSETS = (320, 448)
_RECORDS_BYTES = 576
_RING_OFFSET = 1024
_PHASE_NAME_BYTES = 28
_COLLECTIVE_NAME_BYTES = 32

_HAS_LOSS = 1
_HAS_GRAD_NORM = 2
_HAS_TOKENS = 4
_RUNNING = -1


class Phase(IntEnum):
    """What a rank is doing; phases that a script names itself are OTHER and known by their name."""

    INIT = 0
    RENDEZVOUS = 1
    RESTORE = 2
    DATA = 3
    FORWARD = 4
    BACKWARD = 5
    OPTIMIZER = 6
    CHECKPOINT = 7
    EVAL = 8
    TRAIN = 9
    EXIT = 10
    OTHER = 255


_PHASES = {phase.name.lower(): phase for phase in Phase}
_PHASE_OF_NUMBER = {int(phase): phase for phase in Phase}


class LedgerError(Exception):
    """A ledger cannot be read; the message names the file and the cause."""


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One completed step: `ended_ns` is Unix time, `duration_ns` since the step before ended (or the rank began)."""

    step: int
    ended_ns: int
    duration_ns: int
    loss: float | None
    grad_norm: float | None
    tokens: int | None


class CollectiveState(msgspec.Struct, frozen=True, kw_only=True):
    """The newest collective: `entered` counts all so far, `in_flight` how many threads are inside one now."""

    name: str
    entered: int
    in_flight: int
    entered_ns: int
    left_ns: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank stands. Times are Unix ns, 0 for "not yet"; `step` is the last completed one, -1 before any.

    `exit_code` is set once the rank's script has ended by itself.
    """

    pid: int
    rank: int
    generation: int
    step: int
    steps_done: int
    step_started_ns: int
    phase: Phase
    phase_name: str
    phase_started_ns: int
    first_step_ns: int
    changed_ns: int
    exit_code: int | None
    loss: float | None
    grad_norm: float | None
    tokens: int | None
    collective: CollectiveState


class LedgerWriter:
    """A rank's own side. A call costs about a microsecond; numbers that are None are kept apart from NaN."""

    def __init__(self, path: str | os.PathLike[str], *, rank: int, generation: int, pid: int | None = None) -> None:
        """Create the ledger at `path`, in place of an older one.

        Raises:
            OSError: the file cannot be created.
        """
        self.path = Path(path)
        now = time.time_ns()
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            # Reserve the blocks: a store into a mapped hole of a full disk would end the rank with SIGBUS.
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
            self._map = mmap.mmap(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)
        own_pid = os.getpid() if pid is None else pid
        _HEADER.pack_into(self._map, 0, MAGIC, VERSION, FILE_BYTES, own_pid, rank, generation, now)

        self._sequence = 0
        self._step = -1
        self._steps_done = 0
        self._step_started_ns = now
        self._step_started_mono_ns = time.monotonic_ns()
        self._phase: int = Phase.INIT
        self._phase_name = b"init"
        self._phase_started_ns = now
        self._first_step_ns = 0
        self._exit_code = _RUNNING
        self._loss = 0.0
        self._grad_norm = 0.0
        self._tokens = 0
        self._flags = 0

        self._collective_sequence = 0
        self._entered = 0
        self._entered_ns = 0
        self._left_ns = 0
        self._in_flight = 0
        self._collective_name = b""
        self._depth = _Depth()

        self._write_state(now)
        self._write_collective()
        os.replace(part, self.path)

    @property
    def step(self) -> int:
        """The last completed step, -1 before any."""
        return self._step

    @property
    def steps_done(self) -> int:
        """How many steps were completed in this generation."""
        return self._steps_done

    @property
    def phase_name(self) -> str:
        """The present phase."""
        return self._phase_name.decode(errors="replace")

    def complete_step(
        self,
        step: int | None = None,
        loss: float | None = None,
        grad_norm: float | None = None,
        tokens: int | None = None,
        at_ns: tuple[int, int] | None = None,
    ) -> None:
        """Note that `step` (default: the one after the last) is completed now, or was at `at_ns` (real, monotonic)."""
        now, mono = at_ns or (time.time_ns(), time.monotonic_ns())
        flags = 0
        if loss is None:
            loss = 0.0
        else:
            flags = _HAS_LOSS
        if grad_norm is None:
            grad_norm = 0.0
        else:
            flags |= _HAS_GRAD_NORM
        if tokens is None:
            tokens = 0
        else:
            flags |= _HAS_TOKENS
        self._step = step = self._step + 1 if step is None else step
        self._loss = loss
        self._grad_norm = grad_norm
        self._tokens = tokens
        self._flags = flags
        index = self._steps_done
        self._steps_done = count = index + 1
        duration = mono - self._step_started_mono_ns
        offset = _RING_OFFSET + (index % RING_STEPS) * 72
        _STEP.pack_into(self._map, offset, count, step, now, duration, loss, grad_norm, tokens, flags, 0, count)
        self._step_started_ns = now
        self._step_started_mono_ns = mono
        if not index:
            self._first_step_ns = now
        self._write_state(now)

    def enter_phase(self, name: str) -> str:
        """Note that a phase begins; gives the name of the one before, for coming back to it."""
        before = self._phase_name
        self._phase = _PHASES.get(name, Phase.OTHER)
        self._phase_name = name.encode()[:_PHASE_NAME_BYTES]
        self._phase_started_ns = now = time.time_ns()
        self._write_state(now)
        return before.decode(errors="replace")

    def enter_collective(self, name: bytes) -> None:
        """Note that a collective or a point-to-point call begins. One that is called by another is part of it."""
        depth = self._depth
        depth.here += 1
        if depth.here == 1:
            self._entered += 1
            self._in_flight += 1
            self._collective_name = name
            self._entered_ns = time.time_ns()
            self._write_collective()

    def leave_collective(self) -> None:
        """Note that the collective entered last by this thread is over."""
        depth = self._depth
        depth.here -= 1
        if depth.here == 0:
            self._in_flight -= 1
            self._left_ns = time.time_ns()
            self._write_collective()

    def end(self, exit_code: int) -> None:
        """Note that the script has ended by itself: the done marker."""
        self._exit_code = exit_code
        self.enter_phase("exit")

    def close(self) -> None:
        """Unmap; the file stays."""
        self._map.close()

    def _write_state(self, now: int) -> None:
        self._sequence = sequence = self._sequence + 1
        _STATE.pack_into(
            self._map,
            _STATE_OFFSETS[sequence & 1],
            sequence,
            self._step,
            self._steps_done,
            self._step_started_ns,
            self._phase_started_ns,
            self._first_step_ns,
            now,
            self._exit_code,
            self._loss,
            self._grad_norm,
            self._tokens,
            self._phase,
            self._flags,
            self._phase_name,
            sequence,
        )

    def _write_collective(self) -> None:
        self._collective_sequence = sequence = self._collective_sequence + 1
        _COLLECTIVE.pack_into(
            self._map,
            _COLLECTIVE_OFFSETS[sequence & 1],
            sequence,
            self._entered,
            self._entered_ns,
            self._left_ns,
            self._in_flight,
            0,
            self._collective_name,
            sequence,
        )


class _Depth(threading.local):
    """How deep the present thread is inside collectives that call each other."""

    here = 0


class LedgerReader:
    """Anyone else's side: it reads with system calls, so that a file cut short raises instead of ending the process."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the ledger at `path`.

        Raises:
            FileNotFoundError: there is none (yet).
            LedgerError: the file is cut short, is no ledger, or has a version that this release cannot read.
        """
        self.path = Path(path)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._next_index = 0
        try:
            size = os.fstat(self._descriptor).st_size
            head = os.pread(self._descriptor, _HEADER.size, 0)
            if len(head) < _HEADER.size or head[: len(MAGIC)] != MAGIC:
                raise LedgerError(f"{self.path} is no ledger: it does not begin with {MAGIC.decode()}")
            _, version, file_bytes, self.pid, self.rank, self.generation, self.created_ns = _HEADER.unpack(head)
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

    def snapshot(self) -> Snapshot:
        """The rank's state, whole.

        Raises:
            LedgerError: the file was cut short, or no whole record was met in many attempts.
        """
        for _ in range(READ_ATTEMPTS_MAX):
            first = self._read(0, _RECORDS_BYTES)
            second = self._read(0, _RECORDS_BYTES)
            state = _newest(first, second, _STATE, _STATE_OFFSETS)
            collective = _newest(first, second, _COLLECTIVE, _COLLECTIVE_OFFSETS)
            if state is not None and collective is not None:
                return self._snapshot(state, collective)
        raise LedgerError(
            f"{self.path} had no whole record in {READ_ATTEMPTS_MAX} attempts: is something else writing it?"
        )

    def new_steps(self) -> tuple[list[StepRecord], int]:
        """The steps completed since the last call, oldest first, and how many were overwritten before they were read.

        Raises:
            LedgerError: as in `snapshot`.
        """
        count = self.snapshot().steps_done
        first = max(self._next_index, count - RING_STEPS)
        missed = first - self._next_index
        ring = self._read(_RING_OFFSET, RING_STEPS * _STEP.size) if first < count else b""
        again = self._read(_RING_OFFSET, RING_STEPS * _STEP.size) if first < count else b""
        steps: list[StepRecord] = []
        for index in range(first, count):
            place = index % RING_STEPS * _STEP.size
            entry = ring[place : place + _STEP.size]
            head, step, ended, duration, loss, grad_norm, tokens, flags, _, tail = _STEP.unpack(entry)
            if head != index + 1 or tail != head or entry != again[place : place + _STEP.size]:
                missed += 1
                continue
            steps.append(
                StepRecord(
                    step=step,
                    ended_ns=ended,
                    duration_ns=duration,
                    loss=loss if flags & _HAS_LOSS else None,
                    grad_norm=grad_norm if flags & _HAS_GRAD_NORM else None,
                    tokens=tokens if flags & _HAS_TOKENS else None,
                )
            )
        self._next_index = count
        return steps, missed

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) < size:
            raise LedgerError(f"{self.path} was cut short while it was read, at {offset + len(data)} bytes")
        return data

    def _snapshot(self, state: tuple[Any, ...], collective: tuple[Any, ...]) -> Snapshot:
        _, step, done, step_start, phase_start, first, changed, code, loss, norm, tokens, phase, flags, name, _ = state
        _, entered, entered_ns, left_ns, in_flight, _, collective_name, _ = collective
        return Snapshot(
            pid=self.pid,
            rank=self.rank,
            generation=self.generation,
            step=step,
            steps_done=done,
            step_started_ns=step_start,
            phase=_PHASE_OF_NUMBER.get(phase, Phase.OTHER),
            phase_name=_text(name),
            phase_started_ns=phase_start,
            first_step_ns=first,
            changed_ns=changed,
            exit_code=None if code == _RUNNING else code,
            loss=loss if flags & _HAS_LOSS else None,
            grad_norm=norm if flags & _HAS_GRAD_NORM else None,
            tokens=tokens if flags & _HAS_TOKENS else None,
            collective=CollectiveState(
                name=_text(collective_name),
                entered=entered,
                in_flight=in_flight,
                entered_ns=entered_ns,
                left_ns=left_ns,
            ),
        )


def _newest(first: bytes, second: bytes, record: struct.Struct, offsets: tuple[int, int]) -> tuple[Any, ...] | None:
    """The newest whole record of two slots; None when neither is whole."""
    best: tuple[Any, ...] | None = None
    for offset in offsets:
        raw = first[offset : offset + record.size]
        if raw != second[offset : offset + record.size]:
            continue
        fields = record.unpack(raw)
        if fields[0] == fields[-1] and fields[0] and (best is None or fields[0] > best[0]):
            best = fields
    return best


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")
