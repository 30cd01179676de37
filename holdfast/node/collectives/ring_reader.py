"""The reading side of a rank's ring of collectives (`holdfast.node.collectives.ring_layout`), even if the rank hangs.

It uses pread, because a truncated mmap would raise SIGBUS. It copies each part twice and accepts a record if both
copies and the numbers at both ends agree.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.decoding import UNREADABLE
from holdfast.events.parts.traces import CollectiveRecord, ProcessGroup, RankTrace
from holdfast.node.collectives.ring_layout import (
    COUNTER_BYTES,
    COUNTERS,
    COUNTERS_OFFSET,
    FILE_BYTES,
    GROUP_UNKNOWN,
    GROUPS_MAX,
    HEADER,
    HELD,
    HELD_OFFSET,
    IS_P2P,
    MAGIC,
    MARKS_OFFSET,
    MEMBERS_MAX,
    ON_DEVICE,
    OPERATIONS,
    REACHED,
    RECORD,
    RING_OFFSET,
    RING_RECORDS,
    STATE_OFFSET,
    TABLE_BYTES,
    TABLE_LENGTH,
    TABLE_OFFSET,
    VERSION,
    WORD,
    WORDS,
    GroupCounts,
    GroupEntry,
    RingError,
    RingRecord,
    members_of,
    ranks_of,
)
from holdfast.node.ranks_file import open_ranks_file

__all__ = ["GroupCounts", "RingError", "RingReader", "RingRecord"]

UNKNOWN_GROUP = "?"
"""The name of a group that the table of its rank had no room for."""


class Marks(NamedTuple):
    """Numbers of the last request for marks and of the last answer, and whether the rank marks at all."""

    asked: int
    answered: int
    are_put: bool


class _Copy(NamedTuple):
    records: list[RingRecord]
    torn: list[int]
    """Records being written, or not yet written."""
    overwritten: int


class RingReader:
    """The ring of one rank. `records_read` are known already, the next call of `new_records` goes on from there."""

    def __init__(self, path: str | os.PathLike[str], *, to_ask: bool = False) -> None:
        """Open the ring at `path`; `to_ask`: also for `write`. Raises FileNotFoundError: there is none (yet); OSError:
        it cannot be opened; RingError: it is cut short, no ring, or has a version that this release cannot read.
        """
        self.path = Path(path)
        self.records_read = 0
        self._groups: tuple[GroupEntry, ...] = ()
        self._groups_bytes = 0
        self._descriptor = open_ranks_file(self.path, os.O_RDWR if to_ask else os.O_RDONLY)
        try:
            size = os.fstat(self._descriptor).st_size
            head = os.pread(self._descriptor, HEADER.size, 0)
            if len(head) < HEADER.size or head[: len(MAGIC)] != MAGIC:
                raise RingError(f"{self.path} is no ring of collectives: it does not begin with {MAGIC.decode()}")
            _, version, file_bytes, self.pid, self.rank, self.generation, self.created_ns, self._offset = HEADER.unpack(
                head
            )
            if version != VERSION:
                raise RingError(
                    f"{self.path} has version {version} of a ring of collectives, this release reads {VERSION}: "
                    "restart the job's ranks with the node's present release"
                )
            if file_bytes != FILE_BYTES or size < FILE_BYTES:
                raise RingError(f"{self.path} is cut short: {size} of {FILE_BYTES} bytes")
        except BaseException:
            os.close(self._descriptor)
            raise

    def count(self) -> int:
        """Return the number of records the rank has begun. Raises RingError: the file was cut short."""
        begun, _, _ = WORDS.unpack(self._read(STATE_OFFSET, WORDS.size))
        return int(begun)

    def groups(self) -> tuple[GroupEntry, ...]:
        """Return the process groups that the rank has used. Raises RingError: cut short, or the table is damaged."""
        _, used, _ = WORDS.unpack(self._read(STATE_OFFSET, WORDS.size))
        if used == self._groups_bytes:
            return self._groups
        if not 0 <= used <= TABLE_BYTES:
            raise RingError(f"{self.path} is damaged: a group table of {used} bytes")
        table, found, at = self._read(TABLE_OFFSET, used), [], 0
        try:
            while at < used:
                (length,) = TABLE_LENGTH.unpack_from(table, at)
                at += TABLE_LENGTH.size
                found.append(msgspec.msgpack.decode(table[at : at + length], type=GroupEntry))
                at += length
        except (struct.error, *UNREADABLE) as error:
            raise RingError(f"{self.path} is damaged: its group table cannot be read: {error}") from error
        if len(found) > GROUPS_MAX or sum(members_of(entry.runs) for entry in found) > MEMBERS_MAX:
            raise RingError(f"{self.path} is damaged: its groups, or their members, are more than a job has")
        self._groups, self._groups_bytes = tuple(found), used
        return self._groups

    def counts(self, groups: int) -> tuple[GroupCounts, ...]:
        """Return the progress of the rank in each of the first `groups` groups of the table."""
        size = groups * COUNTER_BYTES
        return tuple(GroupCounts(*row) for row in COUNTERS.iter_unpack(self._read(COUNTERS_OFFSET, size)))

    def records(self, since: int = 0) -> tuple[list[RingRecord], int]:
        """Return records from number `since` on, oldest first, and the number of those that are overwritten or being
        written. Raises RingError."""
        copy = self._copy(since)
        return copy.records, copy.overwritten + len(copy.torn)

    def new_records(self) -> tuple[list[RingRecord], int]:
        """Return the records that have ended since the last call, and how many were missed. Stops before the first
        unfinished record, unless more than half a ring lies behind it."""
        records, torn, overwritten = self._copy(self.records_read)
        end = self.records_read + len(records) + len(torn) + overwritten
        unfinished = [*torn, *(record.index for record in records if not record.left_ns)]
        # Some operations are never waited for, which must not cost later records.
        stop = min((index for index in unfinished if end - index <= RING_RECORDS // 2), default=end)
        self.records_read = stop
        ended = [record for record in records if record.left_ns and record.index < stop]
        return ended, overwritten + sum(index < stop for index in torn)

    def _copy(self, since: int) -> _Copy:
        end = self.count()
        first = max(since, end - RING_RECORDS)
        found: list[RingRecord] = []
        torn: list[int] = []
        overwritten = first - since
        while first < end:
            place = first % RING_RECORDS
            several = min(end - first, RING_RECORDS - place)
            offset, size = RING_OFFSET + place * RECORD.size, several * RECORD.size
            one, two = self._read(offset, size), self._read(offset, size)
            for number, fields in enumerate(RECORD.iter_unpack(one)):
                index = first + number
                at = number * RECORD.size
                if fields[0] == fields[-1] == index + 1 and one[at : at + RECORD.size] == two[at : at + RECORD.size]:
                    found.append(self._record(index, fields))
                elif WORD.unpack_from(two, at)[0] > index + 1:
                    overwritten += 1
                else:
                    torn.append(index)
            first += several
        return _Copy(found, torn, overwritten)

    def trace(self, *, node: str = "", taken_ns: int = 0) -> RankTrace:
        """Return the content of the ring for analysis. Of operations on a device it has only how many have begun: the
        ring does not show their end. Raises RingError: the file was cut short, or its group table is damaged.
        """
        records, _ = self.records()
        groups = self.groups()
        counts = self.counts(len(groups))
        on_device = {record.group for record in records if record.is_on_device}
        return RankTrace(
            rank=self.rank,
            node=node,
            groups=tuple(
                ProcessGroup(name=entry.name, description=entry.description, ranks=ranks_of(entry.runs))
                for entry in groups
            ),
            records=tuple(_observed(record, groups) for record in records if not record.is_on_device),
            entered={
                entry.name: max(count.entered, count.backend_entered)
                for entry, count in zip(groups, counts, strict=True)
            },
            completed={
                entry.name: count.completed
                for place, (entry, count) in enumerate(zip(groups, counts, strict=True))
                if place not in on_device
            },
            taken_ns=taken_ns,
        )

    def marks(self) -> Marks:
        """Raises RingError: the file was cut short."""
        asked, answered, are_put = WORDS.unpack(self._read(MARKS_OFFSET, WORDS.size))
        return Marks(asked, answered, bool(are_put))

    def on_device(self) -> tuple[CollectiveRecord, ...]:
        """Return the operations on the rank's device, oldest first: `started` if the device had reached them at the
        last request for marks. Raises RingError: the file was cut short, or its group table is damaged.
        """
        records, _ = self.records()
        groups = self.groups()
        return tuple(
            msgspec.structs.replace(
                _observed(record, groups), state="started" if record.is_reached else "scheduled", ended_ns=0
            )
            for record in records
            if record.is_on_device
        )

    def hold(self) -> tuple[int, int, int, int, int]:
        """Return the words of the rank about holds. Raises RingError: the file was cut short."""
        number, left, took_ns, of, waited_ns = HELD.unpack(self._read(HELD_OFFSET, HELD.size))
        return number, left, took_ns, of, waited_ns

    def write(self, offset: int, word: int) -> None:
        """Ask the rank for something. Raises OSError."""
        os.pwrite(self._descriptor, WORD.pack(word), offset)

    def close(self) -> None:
        os.close(self._descriptor)

    def _record(self, index: int, fields: tuple[int, ...]) -> RingRecord:
        _, entered, waited, left, size, sequence, peer, group, operation, flags, mark, _ = fields
        offset = self._offset
        return RingRecord(
            index=index,
            entered_ns=entered + offset,
            waited_ns=waited + offset if waited else 0,
            left_ns=left + offset if left else 0,
            bytes=size,
            sequence=sequence,
            peer=peer if peer >= 0 else None,
            group=group,
            operation=OPERATIONS[operation] if operation < len(OPERATIONS) else OPERATIONS[0],
            is_p2p=bool(flags & IS_P2P),
            is_on_device=bool(flags & ON_DEVICE),
            is_reached=mark == REACHED,
        )

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) < size:
            raise RingError(f"{self.path} was cut short while it was read, at {offset + len(data)} bytes")
        return data


def group_name(groups: tuple[GroupEntry, ...], place: int) -> str:
    return groups[place].name if place < min(len(groups), GROUPS_MAX) and place != GROUP_UNKNOWN else UNKNOWN_GROUP


def _observed(record: RingRecord, groups: tuple[GroupEntry, ...]) -> CollectiveRecord:
    return CollectiveRecord(
        group=group_name(groups, record.group),
        sequence=record.sequence,
        operation=record.operation,
        state="completed" if record.left_ns else "scheduled",
        is_p2p=record.is_p2p,
        peer=record.peer,
        bytes=record.bytes,
        created_ns=record.entered_ns,
        ended_ns=record.left_ns,
        is_waited_for=bool(record.waited_ns) and not record.left_ns,
    )
