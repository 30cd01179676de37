"""The ledger: a small mapped file in which a rank notes its progress, readable by others even while it hangs.

One writer (the rank), any number of readers, no locks and no system calls on the writing side. Its layout is in
`holdfast.node.ledger.ledger_layout`.

Consistency is a seqlock that needs no retry on the writer's side: each record is written in ascending order by one C
call under the interpreter lock, its sequence first and last, alternating between two slots. So a rank killed in the
middle of a write leaves the previous record whole. A reader copies the records twice; a slot counts when both copies
agree and its two sequences are equal. Stores must become visible in program order, as on x86-64.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
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
    PHASE_NAME_BYTES,
    PHASES,
    RING_OFFSET,
    RING_STEPS,
    RUNNING,
    SOURCE_NAME_BYTES,
    START,
    START_OFFSETS,
    STATE,
    STATE_OFFSETS,
    STEP,
    VERSION,
    Phase,
    Source,
)

# Global names are found faster than attributes of modules, and calls of a training step pass here a hundred times.
_time_ns = time.time_ns
_pack_collective = COLLECTIVE.pack_into


class LedgerWriter:
    """A rank's own side. A call costs about a microsecond; numbers that are None are kept apart from NaN."""

    def __init__(self, path: str | os.PathLike[str], *, rank: int, generation: int, pid: int | None = None) -> None:
        """Create the ledger at `path`, in place of an older one. Raises OSError: the file cannot be created."""
        self.path = Path(path)
        now = time.time_ns()
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            # Reserve the blocks: a store into a mapped hole of a full disk would end the rank with SIGBUS.
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
            mapped = mmap.mmap(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)
        own_pid = os.getpid() if pid is None else pid
        HEADER.pack_into(mapped, 0, MAGIC, VERSION, FILE_BYTES, own_pid, rank, generation, now)
        self._begin_in(mapped, now)
        os.replace(part, self.path)

    def _begin_in(self, mapped: mmap.mmap, now: int) -> None:
        self._map = mapped
        self._sequence = 0
        self._step = -1
        self._steps_done = 0
        self._step_started_ns = now
        self._step_started_mono_ns = time.monotonic_ns()
        self._phase: int = Phase.INIT
        self._phase_name = b"init"
        self._phase_started_ns = now
        self._first_step_ns = 0
        self._exit_code = RUNNING
        self._loss = 0.0
        self._grad_norm = 0.0
        self._tokens = 0
        self._flags = 0
        self._is_numbered = False
        self._start_sequence = 0

        self._collective_sequence = 0
        self._entered = 0
        self._entered_ns = 0
        self._left_ns = 0
        self._in_flight = 0
        self._collective_name = b""
        self.calls = CallsOfThread()

        self._write_state(now)
        self._write_collective()

    @property
    def step(self) -> int:
        """The last completed step, -1 before any."""
        return self._step

    @property
    def steps_done(self) -> int:
        """Number of steps that were completed in this generation."""
        return self._steps_done

    @property
    def is_numbered(self) -> bool:
        """True if its numbers continue those of earlier generations."""
        return self._is_numbered

    @property
    def phase_name(self) -> str:
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
        self._is_numbered = self._is_numbered or step is not None
        flags = IS_NUMBERED if self._is_numbered else 0
        if loss is None:
            loss = 0.0
        else:
            flags |= HAS_LOSS
        if grad_norm is None:
            grad_norm = 0.0
        else:
            flags |= HAS_GRAD_NORM
        if tokens is None:
            tokens = 0
        else:
            flags |= HAS_TOKENS
        self._step = step = self._step + 1 if step is None else step
        self._loss = loss
        self._grad_norm = grad_norm
        self._tokens = tokens
        self._flags = flags
        index = self._steps_done
        self._steps_done = count = index + 1
        duration = mono - self._step_started_mono_ns
        offset = RING_OFFSET + (index % RING_STEPS) * STEP.size
        STEP.pack_into(self._map, offset, count, step, now, duration, loss, grad_norm, tokens, flags, 0, count)
        self._step_started_ns = now
        self._step_started_mono_ns = mono
        if not index:
            self._first_step_ns = now
        self._write_state(now)

    def begin_steps(self, first: int, source: Source, name: str = "", *, is_known: bool = True) -> None:
        """Note the number of this generation's first step, and where it comes from. Steps without a number of their own
        continue from there. Ignored once that step is completed, if an earlier call has noted its number. Only a log
        may still correct it, for it shows the script's number later.
        """
        self._is_numbered = self._is_numbered or source in _NUMBERING
        if self._steps_done and self._start_sequence and source is not Source.LOG:
            return
        self._start_sequence = sequence = self._start_sequence + 1
        place, text = START_OFFSETS[sequence & 1], name.encode(errors="replace")[:SOURCE_NAME_BYTES]
        START.pack_into(self._map, place, sequence, first, source, is_known, text, sequence)
        if not self._steps_done:
            self._step = first - 1
            self._write_state(time.time_ns())

    def enter_phase(self, name: str) -> str:
        """Note that a phase begins; gives the name of the one before, for coming back to it."""
        before = self._phase_name
        self._phase = PHASES.get(name, Phase.OTHER)
        self._phase_name = name.encode()[:PHASE_NAME_BYTES]
        self._phase_started_ns = now = time.time_ns()
        self._write_state(now)
        return before.decode(errors="replace")

    def enter_collective(self, name: bytes) -> None:
        """Note that a collective or a point-to-point call begins. One that is called by another is part of it."""
        here = self.calls.here
        if here.depth:
            here.depth += 1
            return
        here.depth = 1
        self._entered += 1
        self._in_flight += 1
        self._collective_name = name
        self._entered_ns = _time_ns()
        self._write_collective()

    def leave_collective(self) -> None:
        """Note that the collective entered last by this thread is over."""
        here = self.calls.here
        here.depth = left = here.depth - 1
        if not left:
            self._in_flight -= 1
            self._left_ns = _time_ns()
            self._write_collective()

    def end(self, exit_code: int) -> None:
        """Note that the script has ended by itself. Without this its process was killed, or crashed."""
        self._exit_code = exit_code
        self.enter_phase("exit")

    def close(self) -> None:
        """Unmap; the file stays."""
        self._map.close()

    def _write_state(self, now: int) -> None:
        self._sequence = sequence = self._sequence + 1
        STATE.pack_into(
            self._map,
            STATE_OFFSETS[sequence & 1],
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
        _pack_collective(
            self._map,
            COLLECTIVE_OFFSETS[sequence & 1],
            sequence,
            self._entered,
            self._entered_ns,
            self._left_ns,
            self._in_flight,
            0,
            self._collective_name,
            sequence,
        )


_NUMBERING = (Source.FRAMEWORK, Source.RESTORED)
"""Sources of numbers that continue those of earlier generations."""


class NestedCalls:
    """The collectives that one thread is in: one may call another."""

    __slots__ = ("begun", "depth")

    def __init__(self) -> None:
        self.depth = 0
        self.begun: Any = None
        """Operation that the innermost call has begun, as the hooks note it; None: none."""


class CallsOfThread(threading.local):
    """The calls of the present thread, in `here`: attributes of that are found faster than a thread-local object's."""

    def __init__(self) -> None:
        self.here = NestedCalls()
