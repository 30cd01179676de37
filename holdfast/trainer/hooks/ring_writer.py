"""The writing side of a rank's ring of collectives (`holdfast.node.collectives.ring_layout`).

No locks and no system calls: what a call writes is in the file even if the rank is stopped or killed right afterwards.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from holdfast.node.collectives.ring_layout import (
    COUNTER_BYTES,
    COUNTERS_OFFSET,
    FILE_BYTES,
    GROUP_UNKNOWN,
    GROUPS_MAX,
    HEADER,
    HELD_OFFSET,
    HOLD_OFFSET,
    IS_P2P,
    MAGIC,
    MARKS_OFFSET,
    NOT_REACHED,
    ON_DEVICE,
    REACHED,
    RECORD,
    RING_OFFSET,
    RING_RECORDS,
    STATE_OFFSET,
    TABLE_BYTES,
    TABLE_LENGTH,
    TABLE_OFFSET,
    VERSION,
    GroupEntry,
    runs_of,
)

_WORD = 8
_STATE = STATE_OFFSET // _WORD
_HOLD = HOLD_OFFSET // _WORD
_HELD = HELD_OFFSET // _WORD
_MARKS = MARKS_OFFSET // _WORD
_COUNTERS = COUNTERS_OFFSET // _WORD
_COUNTER_WORDS = COUNTER_BYTES // _WORD
_RING = RING_OFFSET // _WORD
_RECORD_WORDS = RECORD.size // _WORD
_MASK = RING_RECORDS - 1
_WAITED, _LEFT, _WHAT = 2, 3, 6
_WHAT_MASK = 0xFFFFFFFF
_ENDED, _P2P, _BACKEND = 1, 2, 4
_SEQUENCE_MAX = 0xFFFFFFFF
_RECORD_BYTES = RECORD.size
_PACK = struct.Struct("@8q").pack_into
"""A record as 64-bit words: packing its fields one by one takes longer."""
_monotonic_ns = time.monotonic_ns


class RingWriter:
    """A rank's own side; `enter` and `leave` together cost about a microsecond.

    The ring may have gone around by the time an operation ends: its place then has another operation's number.
    """

    def __init__(self, path: str | os.PathLike[str], *, rank: int, generation: int) -> None:
        """Create the ring at `path`, in place of an older one; raises OSError if the file cannot be created."""
        self.path = Path(path)
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            # Reserve the blocks: a store into a mapped hole of a full disk would end the rank with SIGBUS.
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
            self._map = mmap.mmap(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)
        now = time.time_ns()
        self._offset_ns = offset = now - time.monotonic_ns()
        HEADER.pack_into(self._map, 0, MAGIC, VERSION, FILE_BYTES, os.getpid(), rank, generation, now, offset)
        self._words = memoryview(self._map).cast("q")
        self._count = itertools.count()
        self._groups = 0
        self._table_used = 0
        os.replace(part, self.path)

    def add_group(self, name: str, description: str, ranks: tuple[int, ...]) -> int:
        """Note a process group; return its place in the table, `GROUP_UNKNOWN` if there is no more room."""
        entry = msgspec.msgpack.encode(GroupEntry(name, description, runs_of(ranks)))
        place = self._groups
        end = self._table_used + TABLE_LENGTH.size + len(entry)
        if place == GROUPS_MAX or end > TABLE_BYTES:
            return GROUP_UNKNOWN
        start = TABLE_OFFSET + self._table_used
        self._map[start : TABLE_OFFSET + end] = TABLE_LENGTH.pack(len(entry)) + entry
        self._groups = place + 1
        self._table_used = end
        self._words[_STATE + 1] = end
        return place

    def enter(self, group: int, sequence: int, operation: int, size: int, peer: int, flags: int) -> int:
        """Note an operation that begins and is waited for; return the number for `leave`. `flags`: `IS_P2P`,
        `ON_DEVICE`.
        """
        index = next(self._count)
        number = index + 1
        now = _monotonic_ns()
        place = peer << 32 | sequence & _SEQUENCE_MAX
        what = group | operation << 16 | flags << 24
        _PACK(self._map, RING_OFFSET + (index & _MASK) * _RECORD_BYTES, number, now, now, 0, size, place, what, number)
        words = self._words
        words[_STATE] = number
        if group < GROUPS_MAX:
            words[_COUNTERS + group * _COUNTER_WORDS + _P2P * (flags & IS_P2P)] = sequence
        return index

    def add_past(
        self, group: int, sequence: int, operation: int, size: int, *, entered_ns: int, waited_ns: int, left_ns: int
    ) -> None:
        """Note an operation that is over and was not seen while it went on; times are Unix ns."""
        index = next(self._count)
        number = index + 1
        place = -1 << 32 | sequence & _SEQUENCE_MAX
        at, offset = RING_OFFSET + (index & _MASK) * _RECORD_BYTES, self._offset_ns
        entered, waited, left = entered_ns - offset, waited_ns - offset, left_ns - offset
        _PACK(self._map, at, number, entered, waited, left, size, place, group | operation << 16, number)
        self._words[_STATE] = number

    def issued(self, index: int) -> None:
        """Note that the call has come back and the operation goes on: no thread waits for it now."""
        place = _RING + (index & _MASK) * _RECORD_WORDS
        if self._words[place] == index + 1:
            self._words[place + _WAITED] = 0

    def wait(self, index: int) -> None:
        """Note that a thread waits for the operation from now on."""
        place = _RING + (index & _MASK) * _RECORD_WORDS
        if self._words[place] == index + 1:
            self._words[place + _WAITED] = _monotonic_ns()

    def leave(self, index: int, group: int, sequence: int, flags: int) -> None:
        """Note the end of an operation; one on a device: the host goes on."""
        words = self._words
        place = _RING + (index & _MASK) * _RECORD_WORDS
        if words[place] == index + 1:
            words[place + _LEFT] = _monotonic_ns()
        if group < GROUPS_MAX and not flags & ON_DEVICE:
            ended = _COUNTERS + group * _COUNTER_WORDS + _P2P * flags + _ENDED
            # They may be waited for in any order.
            if words[ended] < sequence:
                words[ended] = sequence

    @property
    def hold_wanted(self) -> int:
        """Number of the hold that is wanted and was not left yet; 0: none."""
        wanted = self._words[_HOLD]
        return wanted if wanted and wanted != self._words[_HELD + 1] else 0

    @property
    def hold_wanted_after(self) -> int:
        """Step after which no collective may begin."""
        return self._words[_HOLD + 1]

    @property
    def hold_until_ns(self) -> int:
        """Time at which the hold ends by itself, by the monotonic clock."""
        return self._words[_HOLD + 2]

    def take_product_wanted(self) -> int:
        """Return for how many ns matrices are to be multiplied; answered once."""
        wanted = self._words[_HOLD + 3]
        if wanted:
            self._words[_HOLD + 3] = 0
        return wanted

    def product_took(self, took_ns: int, waited_ns: int, number: int) -> None:
        """Write the nanoseconds of a matrix product in this hold, and for how many of them the rank waited for a
        processor."""
        self._words[_HELD + 4] = waited_ns
        self._words[_HELD + 2] = took_ns
        self._words[_HELD + 3] = number

    def held(self, number: int) -> None:
        self._words[_HELD] = number

    def held_no_more(self, number: int) -> None:
        """Note that the rank has left this hold, and does not come back to it."""
        self._words[_HELD + 1] = number
        self._words[_HELD] = 0

    def backend_has_begun(self, group: int, sequence: int) -> None:
        """Write how many collectives a group's backend has begun, by any caller."""
        if group < GROUPS_MAX:
            self._words[_COUNTERS + group * _COUNTER_WORDS + _BACKEND] = sequence
        self._words[_STATE + 2] = time.monotonic_ns()

    def marks_are_put(self) -> None:
        """Note that the rank answers from now on which marks were reached."""
        self._words[_MARKS + 2] = 1

    @property
    def marks_wanted(self) -> int:
        """The number of the request for marks; 0: none is open."""
        wanted = self._words[_MARKS]
        return wanted if wanted != self._words[_MARKS + 1] else 0

    def answer_marks(self, wanted: int, marks: Iterable[tuple[int, bool]]) -> None:
        """Write the marks that were asked for with `wanted`: each operation, and True if the device has reached it."""
        words = self._words
        for index, is_reached in marks:
            place = _RING + (index & _MASK) * _RECORD_WORDS
            if words[place] == index + 1:
                what = words[place + _WHAT] & _WHAT_MASK
                words[place + _WHAT] = what | (REACHED if is_reached else NOT_REACHED) << 32
        words[_MARKS + 1] = wanted
