"""The ring of collectives: what a rank does in its process groups can be read, whatever the rank does then."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.node.collectives.ring_layout import (
    FILE_BYTES,
    IS_P2P,
    RING_OFFSET,
    RING_RECORDS,
    STATE_OFFSET,
    TABLE_LENGTH,
    WORD,
    GroupEntry,
    ranks_of,
    runs_of,
)
from holdfast.node.collectives.ring_reader import RingError, RingReader
from holdfast.trainer.hooks.ring_writer import RingWriter

ALL_REDUCE, SEND = 1, 18


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-3.collectives"


def test_operations_are_read_as_they_were_written(path: Path) -> None:
    writer = RingWriter(path, rank=3, generation=7)
    reader = RingReader(path)
    group = writer.add_group("4", "tp", (2, 3))
    first = writer.enter(group, 1, ALL_REDUCE, 4096, -1, 0)
    writer.leave(first, group, 1, 0)
    writer.enter(group, 1, SEND, 64, 2, IS_P2P)
    second = writer.enter(group, 2, ALL_REDUCE, 8, -1, 0)
    writer.issued(second)

    trace = reader.trace(node="node-1")
    assert (trace.rank, trace.node, reader.generation, reader.pid) == (3, "node-1", 7, os.getpid())
    assert [(entry.name, entry.description, entry.ranks) for entry in trace.groups] == [("4", "tp", (2, 3))]
    done, sent, issued = trace.records
    assert (done.group, done.sequence, done.operation, done.bytes) == ("4", 1, "all_reduce", 4096)
    assert (done.state, done.peer, done.is_p2p, done.is_waited_for) == ("completed", None, False, False)
    assert 0 < done.created_ns <= done.ended_ns
    assert (sent.operation, sent.sequence, sent.peer, sent.is_p2p) == ("send", 1, 2, True)
    assert (sent.state, sent.is_waited_for) == ("scheduled", True)
    assert (issued.sequence, issued.state, issued.is_waited_for) == (2, "scheduled", False)
    writer.wait(second)
    assert reader.trace().records[2].is_waited_for
    assert (trace.entered, trace.completed) == ({"4": 2}, {"4": 1})


def test_what_the_backend_has_begun_by_itself_counts(path: Path) -> None:
    writer = RingWriter(path, rank=0, generation=1)
    group = writer.add_group("0", "", tuple(range(8)))
    writer.leave(writer.enter(group, 5, ALL_REDUCE, 4, -1, 0), group, 5, 0)
    writer.backend_has_begun(group, 9)
    trace = RingReader(path).trace()
    assert (trace.entered, trace.completed) == ({"0": 9}, {"0": 5})


def test_new_records_wait_for_the_first_that_has_not_ended(path: Path) -> None:
    writer, reader = RingWriter(path, rank=0, generation=1), None
    group = writer.add_group("0", "", (0, 1))
    reader = RingReader(path)
    numbers = [writer.enter(group, sequence, ALL_REDUCE, 4, -1, 0) for sequence in (1, 2, 3)]
    writer.leave(numbers[0], group, 1, 0)
    writer.leave(numbers[2], group, 3, 0)
    assert [record.sequence for record in reader.new_records()[0]] == [1]
    writer.leave(numbers[1], group, 2, 0)
    assert [record.sequence for record in reader.new_records()[0]] == [2, 3]
    assert reader.new_records() == ([], 0)


def test_an_operation_without_a_wait_holds_the_others_up_for_half_a_ring_only(path: Path) -> None:
    writer = RingWriter(path, rank=0, generation=1)
    reader = RingReader(path)
    writer.enter(0, 1, ALL_REDUCE, 4, -1, 0)
    for sequence in range(2, RING_RECORDS // 2 + 3):
        writer.leave(writer.enter(0, sequence, ALL_REDUCE, 4, -1, 0), 0, sequence, 0)
    records, missed = reader.new_records()
    assert (len(records), missed, reader.records_read) == (RING_RECORDS // 2 + 1, 0, RING_RECORDS // 2 + 2)


class _RacedReader(RingReader):
    """Calls `meanwhile` between the two copies of a part of the ring."""

    meanwhile: Callable[[], object] | None = None

    def _read(self, offset: int, size: int) -> bytes:
        data = super()._read(offset, size)
        if offset >= RING_OFFSET and self.meanwhile is not None:
            write, self.meanwhile = self.meanwhile, None
            write()
        return data


@pytest.mark.parametrize("torn", [0, 1, 2])
def test_a_record_that_changes_while_it_is_read_is_returned_later(path: Path, torn: int) -> None:
    writer = RingWriter(path, rank=0, generation=1)
    reader = _RacedReader(path)
    numbers = [writer.enter(0, sequence, ALL_REDUCE, 4, -1, 0) for sequence in range(3)]
    for sequence, number in enumerate(numbers):
        if sequence != torn:
            writer.leave(number, 0, sequence, 0)
    reader.meanwhile = lambda: writer.leave(numbers[torn], 0, torn, 0)
    records, missed = reader.new_records()
    assert ([record.sequence for record in records], missed, reader.records_read) == (list(range(torn)), 0, torn)
    records, missed = reader.new_records()
    assert ([record.sequence for record in records], missed) == (list(range(torn, 3)), 0)


def test_records_overwritten_while_they_are_read_are_missed_for_good(path: Path) -> None:
    writer = RingWriter(path, rank=0, generation=1)
    reader = _RacedReader(path)
    for sequence in range(RING_RECORDS):
        writer.leave(writer.enter(0, sequence, ALL_REDUCE, 4, -1, 0), 0, sequence, 0)
    reader.meanwhile = lambda: writer.leave(writer.enter(0, RING_RECORDS, ALL_REDUCE, 4, -1, 0), 0, RING_RECORDS, 0)
    records, missed = reader.new_records()
    assert ([record.index for record in records], missed) == (list(range(1, RING_RECORDS)), 1)
    records, missed = reader.new_records()
    assert ([record.index for record in records], missed) == ([RING_RECORDS], 0)


def test_a_torn_record_holds_the_others_up_for_half_a_ring_only(path: Path) -> None:
    writer = RingWriter(path, rank=0, generation=1)
    reader = RingReader(path)
    for sequence in range(RING_RECORDS // 2 + 1):
        writer.leave(writer.enter(0, sequence, ALL_REDUCE, 4, -1, 0), 0, sequence, 0)
        if not sequence:
            with path.open("r+b") as file:
                file.seek(RING_OFFSET + 56)
                file.write(WORD.pack(0))
            assert reader.new_records() == ([], 0)
    newest = writer.enter(0, RING_RECORDS, ALL_REDUCE, 4, -1, 0)
    records, missed = reader.new_records()
    assert (len(records), missed, reader.records_read) == (RING_RECORDS // 2, 1, RING_RECORDS // 2 + 1)
    writer.leave(newest, 0, RING_RECORDS, 0)
    assert [record.index for record in reader.new_records()[0]] == [newest]


def test_a_group_that_is_added_while_a_trace_is_taken_is_left_out(path: Path) -> None:
    writer = RingWriter(path, rank=0, generation=1)
    writer.add_group("0", "", (0, 1))

    class Raced(RingReader):
        def groups(self) -> tuple[GroupEntry, ...]:
            found = super().groups()
            writer.add_group(str(len(found)), "", (0, 1))
            return found

    assert Raced(path).trace().entered == {"0": 0}


def test_the_ring_goes_around(path: Path) -> None:
    writer = RingWriter(path, rank=0, generation=1)
    old = writer.enter(0, 1, ALL_REDUCE, 4, -1, 0)
    for sequence in range(2, RING_RECORDS + 11):
        writer.leave(writer.enter(0, sequence, ALL_REDUCE, 4, -1, 0), 0, sequence, 0)
    newest = RingReader(path).records()[0][-1]
    # Its place is another's by now.
    writer.leave(old, 0, 1, 0)
    records, missed = RingReader(path).records()
    assert (len(records), missed) == (RING_RECORDS, 10)
    assert [record.index for record in records] == list(range(10, RING_RECORDS + 10))
    assert records[-1] == newest


def test_a_rank_stopped_in_the_middle_of_a_record_leaves_the_others(path: Path) -> None:
    writer = RingWriter(path, rank=0, generation=1)
    for sequence in (1, 2):
        writer.leave(writer.enter(0, sequence, ALL_REDUCE, 4, -1, 0), 0, sequence, 0)
    with path.open("r+b") as file:
        file.seek(RING_OFFSET + 2 * 64)
        file.write(struct.pack("<qq", 3, 12345))
        file.seek(64)
        file.write(struct.pack("<q", 3))
    records, missed = RingReader(path).records()
    assert ([record.sequence for record in records], missed) == ([1, 2], 1)


def test_a_reader_never_sees_a_mixture(path: Path) -> None:
    """A process that writes at full speed, read meanwhile: bytes, peer and sequence always belong together."""
    RingWriter(path, rank=0, generation=1)
    pid = os.fork()
    if pid == 0:
        writer = RingWriter(path, rank=1, generation=1)
        sequence = 0
        while True:
            sequence += 1
            writer.leave(writer.enter(0, sequence, SEND, sequence, sequence % 1000, IS_P2P), 0, sequence, IS_P2P)
    try:
        while (reader := RingReader(path)).rank == 0:
            reader.close()
        read = 0
        while read < 20_000:
            records, _ = reader.new_records()
            read += len(records)
            for record in records:
                assert record.bytes == record.sequence == record.index + 1
                assert record.peer == record.sequence % 1000
                assert record.entered_ns <= record.left_ns
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_groups_beyond_the_table_have_no_name_and_harm_nothing(path: Path) -> None:
    writer = RingWriter(path, rank=0, generation=1)
    places = [writer.add_group(str(number), "d" * 100, (0, 1)) for number in range(200)]
    assert places[:3] == [0, 1, 2]
    assert places[-1] == 0xFFFF
    writer.leave(writer.enter(places[-1], 1, ALL_REDUCE, 4, -1, 0), places[-1], 1, 0)
    (record,) = RingReader(path).trace().records
    assert (record.group, record.state) == ("?", "completed")


@pytest.mark.parametrize(
    "ranks",
    [(), (5,), (0, 1), (3, 1), tuple(range(32_768)), tuple(range(7, 4096, 64)), (0, 1, 8, 9, 16, 17), (0, 0, 0)],
)
def test_ranks_as_runs_are_the_same_ranks(ranks: tuple[int, ...]) -> None:
    assert ranks_of(runs_of(ranks)) == ranks
    assert len(runs_of(ranks)) <= max(1, len(ranks) // 2 + 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no ring"),
        (b"HFLEDGER and so on, long enough to be a header of fifty-six bytes", "is no ring"),
        (b"HFCOLLEC" + struct.pack("<IIqqqqq", 1, FILE_BYTES, 1, 0, 1, 0, 0), "cut short: 56 of"),
        (b"HFCOLLEC" + struct.pack("<IIqqqqq", 9, FILE_BYTES, 1, 0, 1, 0, 0), "version 9"),
    ],
)
def test_a_file_that_is_no_whole_ring_is_named(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(RingError, match=message):
        RingReader(path)


def test_damage_met_later_is_named(path: Path) -> None:
    writer = RingWriter(path, rank=0, generation=1)
    writer.add_group("0", "", (0, 1))
    reader = RingReader(path)
    with path.open("r+b") as file:
        file.seek(16_384)
        file.write(b"\xff" * 8)
    with pytest.raises(RingError, match="group table cannot be read"):
        reader.trace()
    os.truncate(path, 70)
    with pytest.raises(RingError, match="cut short"):
        reader.records()


def test_a_group_of_more_ranks_than_there_are_is_damage(path: Path) -> None:
    with pytest.raises(RingError, match="more than a job has"):
        ranks_of(((0, 1 << 50, 1),))
    writer, reader = RingWriter(path, rank=0, generation=1), RingReader(path)
    writer.add_group("g", "", (0, 1))
    with path.open("r+b") as file:
        entry = msgspec.msgpack.encode(GroupEntry("g", "", ((0, 1 << 50, 1),)))
        file.seek(16_384)
        file.write(TABLE_LENGTH.pack(len(entry)) + entry)
        file.seek(STATE_OFFSET + 8)
        file.write(WORD.pack(TABLE_LENGTH.size + len(entry)))
    with pytest.raises(RingError, match="its group table cannot be read"):
        reader.trace()
