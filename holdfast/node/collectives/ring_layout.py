"""The layout of a ring of collectives, and what is read from it.

Version 1, little-endian (the words in the machine's order, which is the same), offsets in bytes:

====== ====== =========================================================================================
offset bytes  content
====== ====== =========================================================================================
0      56     header: magic ``HFCOLLEC``, version u32, file bytes u32, pid i64, rank i64, generation i64,
              created i64 (Unix ns), Unix time less the monotonic clock i64 (ns); written once, before the
              file gets its name
64     24     state, three words i64: records begun so far, bytes of the group table in use, when the
              sequence numbers of backends were read last (monotonic ns, 0: never)
128    32     hold, four words i64, written by the node's agent: number of the hold (0: none), the step
              after which nothing begins, end (monotonic ns), seconds of matrix products to do (ns, 0: none);
              the number is written last
192    40     held, five words i64, written by the rank: number of the hold that it waits in (0: none), of
              the last one that it has left, what a matrix product took (ns, 0: none done), in which hold,
              and for how much of that time it waited for a processor (ns)
256    24     marks, three words i64: what the agent asked with last, what the rank answered last, and whether it
              marks at all; the second is written once all records have their marks
1024   8192   counters of 128 groups, 64 bytes each: collectives begun and ended, point-to-point begun and
              ended (what runs on a device is not counted as ended), and what the backend reports as
              begun, i64 each; the rest is reserved
16384  65536  group table: entries one after another, each a u32 length and a MessagePack array of name,
              description and ranks, these as runs of (first, count, stride)
81920  524288 ring of the last 8192 records, 64 bytes each, at index modulo 8192
====== ====== =========================================================================================

Record: index + 1 i64; entered, waited for since, left i64 (monotonic ns, 0: not or not yet); bytes i64; sequence u32;
peer i32 (global rank, -1: none); group u16 (its place in the table), operation u8, flags u8 (1: point-to-point, 2: on
a device), mark u32 (0: none, 1: the device has not come to it, 2: it has); index + 1 i64 again. A word is stored at
once, a record field by field in this order: a rank stopped in between leaves a record whose ends differ, and which is
not there yet.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec

from holdfast.events.parts.job import RANKS_MAX

MAGIC = b"HFCOLLEC"
VERSION = 1
RING_RECORDS = 8192
GROUPS_MAX = 128
MEMBERS_MAX = 4 * RANKS_MAX
"""Maximum number of members of all groups together, for a reader's memory."""

HEADER = struct.Struct("<8sIIqqqqq")
STATE_OFFSET = 64
HOLD_OFFSET = 128
HELD_OFFSET = 192
MARKS_OFFSET = 256
COUNTERS_OFFSET = 1024
COUNTER_BYTES = 64
TABLE_OFFSET = 16_384
TABLE_BYTES = 65_536
RING_OFFSET = TABLE_OFFSET + TABLE_BYTES
RECORD = struct.Struct("@qqqqqIiHBBIq")
FILE_BYTES = RING_OFFSET + RING_RECORDS * RECORD.size

WORDS = struct.Struct("@qqq")
HELD = struct.Struct("@qqqqq")
WORD = struct.Struct("@q")
COUNTERS = struct.Struct("@qqqqq24x")
TABLE_LENGTH = struct.Struct("<I")
GROUP_UNKNOWN = 0xFFFF
"""Group number of a record whose group had no room in the table."""

IS_P2P = 1
ON_DEVICE = 2
"""The operation runs on a stream of a device: "left" is the time at which the host went on; the time of its end is not
here."""
NOT_REACHED, REACHED = 1, 2
"""Marks of a record."""

OPERATIONS = (
    "other",
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_coalesced",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
)
"""Numbered by their place; only added to."""

_Ranks = Annotated[int, msgspec.Meta(ge=0, le=RANKS_MAX)]
Run = tuple[_Ranks, _Ranks, Annotated[int, msgspec.Meta(ge=-RANKS_MAX, le=RANKS_MAX)]]
"""First, count, stride."""


class RingError(Exception):
    """A ring of collectives cannot be read; the message names the file and the cause."""


class RingRecord(msgspec.Struct, frozen=True):
    """One operation, as the ring has it. Times are Unix ns, 0: not, or not yet. `group` is a place in the table.
    `is_reached`: the rank's device had come to it when marks were last asked for.
    """

    index: int
    entered_ns: int
    waited_ns: int
    left_ns: int
    bytes: int
    sequence: int
    peer: int | None
    group: int
    operation: str
    is_p2p: bool
    is_on_device: bool = False
    is_reached: bool = False


class GroupEntry(msgspec.Struct, frozen=True, array_like=True):
    name: str
    description: str
    runs: tuple[Run, ...]


class GroupCounts(msgspec.Struct, frozen=True):
    """Progress of a rank in a group: its operations through Python, and those that the backend began, C++ included."""

    entered: int
    completed: int
    p2p_entered: int
    p2p_completed: int
    backend_entered: int


def runs_of(ranks: tuple[int, ...]) -> tuple[Run, ...]:
    """Encode ranks in their order as few runs of equal distance: groups of a mesh take one or a few."""
    runs: list[Run] = []
    at = 0
    while at < len(ranks):
        first = ranks[at]
        stride = ranks[at + 1] - first if at + 1 < len(ranks) else 1
        end = at + 1
        while end < len(ranks) and ranks[end] == ranks[end - 1] + stride:
            end += 1
        runs.append((first, end - at, stride))
        at = end
    return tuple(runs)


def ranks_of(runs: tuple[Run, ...]) -> tuple[int, ...]:
    """Decode runs of ranks. Raises RingError: a job cannot have this many ranks."""
    if (count := members_of(runs)) > RANKS_MAX:
        raise RingError(f"a group of {count} ranks: more than a job has")
    return tuple(first + number * stride for first, count, stride in runs for number in range(count))


def members_of(runs: tuple[Run, ...]) -> int:
    """Return the number of ranks in these runs."""
    return sum(count for _, count, _ in runs)
