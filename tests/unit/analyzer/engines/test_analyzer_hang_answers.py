"""Answers to the trace of a stalled job: late, in parts, repeated, or for ranks of other nodes."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from holdfast import events
from holdfast.events import (
    CollectiveTrace,
    HangFound,
    JobFinished,
    JobTraced,
    Progress,
    StackDump,
)
from holdfast.events.parts.ranks import RankProgress
from holdfast.events.parts.traces import CollectiveRecord, ProcessGroup, ProcessStacks, RankTrace
from holdfast.fresh_ids import uuid7
from holdfast.ids import named_id
from holdfast.requests import TraceJob
from holdfast_analyzer.engines.hang.hang_engine import HangEngine
from holdfast_analyzer.engines.hang.progress_watch import ProgressWatch, Stall
from tests.scenes.hang import NODES, START, Scene, hanging, train


def test_a_node_that_does_not_answer_is_asked_twice_before_it_is_blamed() -> None:
    scene = hanging()
    scene.answer("a", "b", "d", guilty=None)
    for _ in range(3):
        scene.second()
    assert len(scene.wanted) == 2 and not scene.of(JobTraced)
    scene.answer("a", "b", "d", guilty=None)
    for _ in range(10):
        scene.second()
    (found,), (traced,) = scene.of(HangFound), scene.of(JobTraced)
    assert traced.unanswered == ("c",)
    assert (found.nodes, found.ranks, found.is_machine) == (("c",), (2,), True)
    assert not found.is_by_signal


def test_answers_arrive_in_parts_and_for_other_traces() -> None:
    scene = hanging()
    stray = uuid7()
    scene.receive(StackDump(**scene.common("c"), trace=stray, processes=()))
    scene.answer("a", "b", "d", parts=3)
    assert not scene.of(JobTraced)
    scene.answer("c", parts=3, state="T")
    assert scene.of(HangFound)[0].ranks == (2,)


def test_nothing_is_concluded_while_a_node_is_silent() -> None:
    scene = Scene()
    train(scene)
    scene.second()
    for _ in range(60):
        scene.second(nodes=("a", "b", "d"))
    assert not scene.wanted
    scene.adopt(scene.analyzer.on_time(scene.now, None))
    assert not scene.wanted


def test_an_effect_that_is_not_committed_is_repeated() -> None:
    scene = Scene()
    train(scene)
    for _ in range(3):
        scene.second()
    scene.now += timedelta(seconds=0.1)
    scene.still_s += 1
    for rank, node in enumerate(NODES):
        inside = rank != 2
        reported = RankProgress(
            rank=rank, step=20, phase="train", steps_done=20, since_change_s=4.5, in_collective=int(inside)
        )
        scene.receive(Progress(**scene.common(node), ranks=(reported,), world_size=4, nproc_per_node=1))
    lost = scene.analyzer.on_time(scene.now, START)
    again = scene.analyzer.on_time(scene.now, START)
    if scene.wanted:
        assert not lost.events and not again.events, "it was asked already"
        return
    assert lost.events and lost == again
    scene.adopt(again)
    assert scene.analyzer.on_time(scene.now, START).is_nothing


def test_old_events_are_ignored() -> None:
    scene = Scene()
    train(scene)
    for rank, node in enumerate(NODES):
        old = scene.common(node) | {"at": scene.now - timedelta(hours=1)}
        reported = RankProgress(rank=rank, step=20, phase="train", steps_done=20, since_change_s=100.0)
        scene.receive(Progress(**old, ranks=(reported,), world_size=4, nproc_per_node=1))
    assert scene.analyzer.on_time(scene.now, START).is_nothing


def test_a_node_answers_for_its_own_ranks_only() -> None:
    scene = hanging()
    trace = scene.wanted[-1].id
    lies = (ProcessStacks(rank=0, node="a", pid=1, state="T"), ProcessStacks(rank=7, pid=1, state="T"))
    for node in ("stranger", "b"):
        reported = RankTrace(rank=0, node="a", entered={"g": 9})
        scene.receive(StackDump(**scene.common(node), trace=trace, processes=lies))
        scene.receive(CollectiveTrace(**scene.common(node), trace=trace, origin=START, ranks=(reported,)))
    scene.answer("a", "d")
    assert not scene.of(JobTraced), "one has not answered, whoever else has"
    scene.answer("c", state="T")
    (traced,) = scene.of(JobTraced)
    assert (traced.processes, traced.suspects[0].ranks) == (3, (2,)), "what b says is nothing of its own"


def test_a_part_that_does_not_fit_the_others_is_ignored() -> None:
    scene = hanging()
    scene.answer("a", "b", "d")
    trace = scene.wanted[-1].id
    for part, parts in ((0, 1), (5, 2), (1, 2), (2, 3)):
        scene.receive(StackDump(**scene.common("c"), trace=trace, processes=(), part=part, parts=parts))
    assert not scene.of(JobTraced)
    scene.answer("c", parts=2, state="T")
    assert scene.of(HangFound)[0].ranks == (2,)


def test_an_answer_is_missing_only_if_the_bus_was_received() -> None:
    scene = hanging()
    scene.answer("a", "b", "d", guilty=None)
    for _ in range(20):
        scene.second(deaf=True)
    assert len(scene.wanted) == 1 and not scene.of(JobTraced), "the bus was away"
    scene.answer("c", state="T")
    assert scene.of(HangFound)[0].ranks == (2,)


def test_an_uncommitted_step_is_dropped_with_the_job() -> None:
    scene = Scene()
    train(scene)
    for _ in range(10):
        scene.second(moves=True)
    for number in range(20):
        scene.analyzer.on_request(TraceJob(id=named_id(START, number), asked_by="ada", job="job"), scene.now)
    (engine,) = (it for it in scene.analyzer._engines if isinstance(it, HangEngine))
    assert len(engine._uncommitted) == 1
    common = scene.common("a") | {"source": "controller", "node": None}
    scene.receive(JobFinished(**common, outcome="completed", exit_code=0, reason="done"))
    assert not engine._uncommitted


def test_a_job_of_many_nodes_is_judged_once_when_all_have_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = hanging()
    looks: list[datetime] = []
    stall = ProgressWatch.stall

    def look(watch: ProgressWatch, step_s: float | None, now: datetime) -> Stall | None:
        looks.append(now)
        return stall(watch, step_s, now)

    monkeypatch.setattr(ProgressWatch, "stall", look)
    scene.answer("a", "b", "d", parts=5)
    assert not looks
    scene.answer("c", parts=5, state="T")
    assert len(looks) == 1 and scene.of(HangFound)


def test_ranks_that_only_a_record_names_do_not_exist() -> None:
    scene = Scene(mesh="a mesh that is none")
    train(scene)
    scene.until_asked()
    trace = scene.wanted[-1].id
    for rank, node in enumerate(NODES):
        group = ProcessGroup(name="g", ranks=(0, 1, 2, 3, -1, 1 << 60))
        waits = CollectiveRecord(group="g", sequence=9, operation="all_reduce", is_waited_for=True, created_ns=5)
        reported = RankTrace(rank=rank, groups=(group,), records=(waits,), entered={"g": 9}, completed={"g": 8})
        scene.receive(StackDump(**scene.common(node), trace=trace, processes=()))
        scene.receive(CollectiveTrace(**scene.common(node), trace=trace, origin=START, ranks=(reported,)))
    (traced,) = scene.of(JobTraced)
    events.decode(events.encode(traced))
    assert {rank for suspect in traced.suspects for rank in suspect.ranks} <= {0, 1, 2, 3}
