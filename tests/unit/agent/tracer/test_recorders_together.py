"""What a rank's ring and its flight recorders say together: each is asked for what it knows."""

from __future__ import annotations

from pathlib import Path

from holdfast.events.parts.traces import CollectiveRecord, ProcessGroup, RankTrace, RecordState
from holdfast.node.collectives.ring_layout import IS_P2P, ON_DEVICE, OPERATIONS
from holdfast.node.collectives.ring_reader import RingReader
from holdfast.trainer.hooks.ring_writer import RingWriter
from holdfast_agent.tracer.collectives import with_recorder, with_recorders
from holdfast_agent.tracer.recorder import RecorderAnswer

ALL_REDUCE = OPERATIONS.index("all_reduce")


def record(
    sequence: int, group: str = "0", *, state: RecordState = "completed", name: str = "all_reduce", p2p: bool = False
) -> CollectiveRecord:
    return CollectiveRecord(
        group=group, sequence=sequence, operation=name, state=state, is_p2p=p2p, created_ns=sequence + 1
    )


def test_the_recorder_adds_what_compiled_code_has_begun() -> None:
    groups = (ProcessGroup(name="0", ranks=(0, 1)),)
    ring = RankTrace(rank=0, node="a", groups=groups, records=(record(1), record(4)), entered={"0": 4}, taken_ns=5)
    recorder = RankTrace(
        rank=0,
        records=(record(1, name="gloo:all_reduce"), record(2), record(3, state="scheduled"), record(1, "other")),
        entered={"0": 5},
    )
    both = with_recorder(ring, recorder)
    assert [(one.group, one.sequence) for one in both.records if one.group == "0"] == [("0", at) for at in (1, 2, 3, 4)]
    assert [one.sequence for one in both.records if one.group == "other"] == [1]
    assert both.records[0].operation == "all_reduce" and both.entered == {"0": 5}
    alone = with_recorder(RankTrace(rank=0, node="a", unread="no ring", taken_ns=5), recorder)
    assert alone.records == recorder.records and (alone.node, alone.unread) == ("a", "")


def ring_of(path: Path, *, steps: int, flags: int) -> RankTrace:
    """A rank that has called one collective a step, of which none is waited for any more."""
    writer = RingWriter(path, rank=0, generation=1)
    world = writer.add_group("0", "default_pg", (0, 1))
    for sequence in range(1, steps + 1):
        writer.leave(writer.enter(world, sequence, ALL_REDUCE, 4, -1, flags), world, sequence, flags)
    reader = RingReader(path)
    assert [record.is_on_device for record in reader.records()[0]] == [bool(flags & ON_DEVICE)] * steps
    return reader.trace(node="a")


def test_python_does_not_know_what_its_device_has_done(tmp_path: Path) -> None:
    on_cpu = ring_of(tmp_path / "cpu", steps=3, flags=0)
    assert (on_cpu.entered, on_cpu.completed, len(on_cpu.records)) == ({"0": 3}, {"0": 3}, 3)
    on_device = ring_of(tmp_path / "device", steps=3, flags=ON_DEVICE)
    assert (on_device.entered, on_device.completed, on_device.records) == ({"0": 3}, {}, ())
    messages = ring_of(tmp_path / "messages", steps=3, flags=ON_DEVICE | IS_P2P)
    assert (messages.completed, messages.records) == ({}, ())


def test_of_a_device_the_recorder_of_nccl_is_believed(tmp_path: Path) -> None:
    ring = ring_of(tmp_path / "device", steps=3, flags=ON_DEVICE)
    device = RankTrace(
        rank=0,
        groups=(ProcessGroup(name="0", ranks=(0, 1)), ProcessGroup(name="not used", ranks=(0, 1))),
        records=(record(1), record(2, state="started"), record(3, state="scheduled"), record(1, p2p=True)),
        entered={"0": 3},
        completed={"0": 1},
    )
    both = with_recorders(ring, RecorderAnswer(RankTrace(rank=0), device))
    assert [one.state for one in both.records if not one.is_p2p] == ["completed", "started", "scheduled"]
    assert [one.sequence for one in both.records if one.is_p2p] == [1]
    assert (both.entered, both.completed, both.node) == ({"0": 3}, {"0": 1}, "a")
    assert [group.name for group in both.groups] == ["0"]


def test_of_a_group_on_both_the_sequence_of_the_device_counts() -> None:
    ring = RankTrace(rank=0, records=(record(7), record(3, "cpu")), entered={"0": 7, "cpu": 3}, completed={"0": 7})
    device = RankTrace(rank=0, records=(record(7, state="started"),), entered={"0": 7}, completed={"0": 6})
    host = RankTrace(rank=0, records=(record(9), record(4, "cpu")), entered={"0": 9, "cpu": 4}, completed={"0": 9})
    both = with_recorders(ring, RecorderAnswer(host, device))
    assert [(one.group, one.sequence, one.state) for one in both.records if one.group == "0"] == [("0", 7, "started")]
    assert (both.entered, both.completed) == ({"0": 7, "cpu": 4}, {"0": 6})


def test_messages_of_the_cpu_are_told_once() -> None:
    ring = RankTrace(rank=0, records=(record(1, p2p=True),), entered={})
    host = RankTrace(rank=0, records=(record(2, p2p=True), record(2)))
    assert [(one.sequence, one.is_p2p) for one in with_recorders(ring, RecorderAnswer(host, None)).records] == [
        (1, True),
        (2, False),
    ]
