"""The layout of a ledger file, and what is read from it.

Version 1, little-endian, offsets in bytes:

====== ===== ==========================================================================================
offset bytes content
====== ===== ==========================================================================================
0      48    header: magic ``HFLEDGER``, version u32, file bytes u32, pid i64, rank i64, generation i64,
             created i64 (Unix ns); written once, before the file gets its name
64     128   state record, slot 0
192    128   state record, slot 1
320    80    collective record, slot 0
448    80    collective record, slot 1
576    76    start record, slot 0; a ledger of a release that had none holds zeros there
704    76    start record, slot 1
1024   18432 ring of the last 256 steps, 72 bytes each, at index modulo 256
====== ===== ==========================================================================================

State record: sequence u64, step i64, steps done i64, then Unix ns i64 each: step start, phase start, first step
completed (0: not yet), last change; exit code i64 (-1: runs); loss f64, gradient norm f64, tokens i64; phase u16,
flags u16, phase name 28 bytes (UTF-8, zero-padded); the same sequence u64 again.
Collective record: sequence u64, collectives entered u64, entered i64 and left i64 (Unix ns), in flight u32, reserved
u32, name 32 bytes; the same sequence u64 again.
Start record: sequence u64, number of the generation's first step i64, source u16, is known u16, name of the source 48
bytes; the same sequence u64 again.
Ring entry: index + 1 u64, step i64, end i64 (Unix ns), duration i64 (ns), loss f64, gradient norm f64, tokens i64,
flags u32, reserved u32; index + 1 u64 again.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import msgspec

MAGIC = b"HFLEDGER"
VERSION = 1
RING_STEPS = 256
FILE_BYTES = 20_480

HEADER = struct.Struct("<8sIIqqqq")
STATE = struct.Struct("<QqqqqqqqddqHH28sQ")
START = struct.Struct("<QqHH48sQ")
COLLECTIVE = struct.Struct("<QQqqII32sQ")
STEP = struct.Struct("<QqqqddqIIQ")
STATE_OFFSETS = (64, 192)
COLLECTIVE_OFFSETS = (320, 448)
START_OFFSETS = (576, 704)
RECORDS_BYTES = 832
RING_OFFSET = 1024
PHASE_NAME_BYTES = 28
SOURCE_NAME_BYTES = 48

HAS_LOSS = 1
HAS_GRAD_NORM = 2
HAS_TOKENS = 4
IS_NUMBERED = 8
"""Flag of the state record: steps have the script's own numbers, or continue from the restored step."""
RUNNING = -1


class Phase(IntEnum):
    """Activity of a rank; phases that a script names itself are OTHER and known by their name."""

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


class Source(IntEnum):
    """Source of the numbers of a rank's steps."""

    NONE = 0
    """The source is not known yet, or not recorded by the rank's release."""
    SCRIPT = 1
    """The script reports its steps."""
    FRAMEWORK = 2
    """The framework that trains counts them."""
    RESTORED = 3
    """Counted steps of the optimizer, from the step that the script has restored."""
    LOG = 4
    """Counted steps of the optimizer from 0; the script's own output shows which number it gives to the first."""
    OPTIMIZER = 5
    """Counted steps of the optimizer in this generation, from 0."""


PHASES = {phase.name.lower(): phase for phase in Phase}
PHASE_OF_NUMBER = {int(phase): phase for phase in Phase}
SOURCE_OF_NUMBER = {int(source): source for source in Source}


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


class LedgerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """State of a rank. Times are Unix ns, 0 for "not yet"; `step` is the last completed one, -1 before any.

    `exit_code` is set once the rank's script has ended by itself. Steps that are not numbered are counted from 0 in
    each generation.
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
    is_numbered: bool
    first: int | None
    """Number of the generation's first step; None until its source is known."""
    source: Source
    source_name: str
    is_start_known: bool
    """False if the script has restored something, and nothing shows at which step it goes on."""
    collective: CollectiveState


NO_START = (0, 0, Source.NONE, True, b"", 0)
"""Start record of a rank whose release writes none."""


def newest(first: bytes, second: bytes, record: struct.Struct, offsets: tuple[int, int]) -> tuple[Any, ...] | None:
    """Return the newest record that is whole in two copies of the file's beginning; None when neither slot has one."""
    best: tuple[Any, ...] | None = None
    for offset in offsets:
        raw = first[offset : offset + record.size]
        if raw != second[offset : offset + record.size]:
            continue
        fields = record.unpack(raw)
        if fields[0] == fields[-1] and fields[0] and (best is None or fields[0] > best[0]):
            best = fields
    return best


def text_of(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")
