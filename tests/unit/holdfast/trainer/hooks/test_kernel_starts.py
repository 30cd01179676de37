"""How far a device has come: when kernels are timed, when they are marked, and how an agent hears of marks.

The device here is a stand-in with the two calls that marks need of CUDA.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.events.parts.traces import CollectiveRecord, RankTrace, RecordState
from holdfast.node.collectives.marks import ask_for_marks
from holdfast.node.collectives.ring_layout import ON_DEVICE
from holdfast.node.collectives.ring_reader import RingReader
from holdfast.trainer.hooks import collective_hooks
from holdfast.trainer.hooks.kernel_starts import MARKS, TIMING, Marks, choose
from holdfast.trainer.hooks.ring_writer import RingWriter
from holdfast.trainer.phases import binding
from holdfast_agent.tracer.collectives import marked, marks_of

ALL_REDUCE = 1


class Device:
    """A stream that has come to its first `done` events."""

    def __init__(self) -> None:
        self.done = 0
        self.recorded = 0
        self.ready = True
        self.broken = False

    def is_ready(self) -> bool:
        return self.ready

    def event(self) -> Any:
        device = self

        class Event:
            at = 0

            def record(self) -> None:
                device.recorded += 1
                self.at = device.recorded

            def query(self) -> bool:
                if device.broken:
                    raise RuntimeError("CUDA error: unspecified launch failure")
                return self.at <= device.done

        return Event()


def test_kernels_are_timed_unless_they_run_in_launch_order_or_somebody_said_otherwise() -> None:
    environ: dict[str, str] = {}
    assert not choose(environ) and environ == {TIMING: "1"}
    environ = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert choose(environ) and TIMING not in environ
    for said in ("0", "1"):
        environ = {TIMING: said, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        assert not choose(environ) and environ[TIMING] == said


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RingWriter:
    writer = RingWriter(tmp_path / "rank-0.collectives", rank=0, generation=1)
    monkeypatch.setattr(binding, "ring", writer)
    monkeypatch.setattr(collective_hooks._Marked, "marks", None)
    return writer


def begin(ring: RingWriter, marks: Marks, count: int) -> None:
    group = ring.add_group("0", "", (0, 1))
    for sequence in range(1, count + 1):
        index = ring.enter(group, sequence, ALL_REDUCE, 4, -1, ON_DEVICE)
        marks.put(index)
        # The host is through with it once it is queued.
        ring.leave(index, group, sequence, ON_DEVICE)


def asked(ring: RingWriter) -> dict[int, bool]:
    """What an agent reads once a thread of the rank has looked after its ring."""
    answered: list[bool] = []
    agent = threading.Thread(target=lambda: answered.append(ask_for_marks(ring.path, within_s=10)))
    agent.start()
    while agent.is_alive():
        collective_hooks.look_after(ring)
    assert answered == [True]
    return {record.sequence: record.state == "started" for record in RingReader(ring.path).on_device()}


def test_an_agent_hears_how_far_the_device_has_come(ring: RingWriter) -> None:
    device = Device()
    marks = Marks(device)
    collective_hooks.put_marks(marks)
    begin(ring, marks, 5)
    device.done = 3
    assert asked(ring) == {1: True, 2: True, 3: True, 4: False, 5: False}
    device.done = 4
    assert asked(ring)[4], "what is asked again is looked at again"
    assert [(record.operation, record.bytes) for record in RingReader(ring.path).on_device()] == [("all_reduce", 4)] * 5


def test_only_the_last_operations_are_marked(ring: RingWriter) -> None:
    device = Device()
    marks = Marks(device)
    collective_hooks.put_marks(marks)
    begin(ring, marks, MARKS + 10)
    device.done = device.recorded - 1
    told = asked(ring)
    assert not told[10] and told[11] and told[MARKS + 9] and not told[MARKS + 10]


def test_nothing_is_put_into_a_graph_and_a_broken_device_ends_it(ring: RingWriter) -> None:
    device = Device()
    marks = Marks(device)
    collective_hooks.put_marks(marks)
    device.ready = False
    begin(ring, marks, 2)
    assert device.recorded == 0
    device.ready, device.done = True, 9
    begin(ring, marks, 1)
    device.broken = True
    assert not any(asked(ring).values())
    assert "launch failure" in marks.failed
    begin(ring, marks, 1)
    assert device.recorded == 1, "training goes on without marks"


def test_a_rank_without_marks_and_one_that_does_not_answer(ring: RingWriter) -> None:
    assert not ask_for_marks(ring.path)
    collective_hooks.put_marks(Marks(Device()))
    assert not ask_for_marks(ring.path, within_s=0.05)
    with pytest.raises(FileNotFoundError):
        ask_for_marks(ring.path.with_name("none"))
    assert marks_of(ring.path.with_name("none.ledger")) == ()


def record(sequence: int, state: RecordState, operation: str = "all_reduce") -> CollectiveRecord:
    is_p2p = operation != "all_reduce"
    return CollectiveRecord(
        group="0", sequence=sequence, operation=operation, state=state, is_p2p=is_p2p, peer=1 if is_p2p else None
    )


def test_marks_stand_in_for_starts_that_are_not_recorded() -> None:
    recorder = RankTrace(
        rank=0,
        # Two of the messages are one batch, and counted once.
        records=(
            record(1, "completed"),
            record(2, "scheduled"),
            record(3, "scheduled"),
            record(4, "scheduled", "send"),
            record(4, "scheduled", "recv"),
            record(5, "scheduled", "send"),
        ),
    )
    marks = [
        *(record(at, "started") for at in (1, 2)),
        record(3, "scheduled"),
        record(6, "started", "send"),
        record(7, "started", "send"),
        record(8, "started", "recv"),
        record(9, "scheduled", "send"),
    ]
    assert [one.state for one in marked(recorder, marks).records] == [
        "completed",
        "started",
        "scheduled",
        "started",
        "started",
        "scheduled",
    ]
    assert marked(recorder, ()) is recorder
