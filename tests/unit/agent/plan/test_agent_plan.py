"""The agent's decisions, one after the other, without an agent."""

from __future__ import annotations

from datetime import timedelta

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.events import (
    LogSignature,
    NodeDeparted,
    OrderRefused,
    ProcessExited,
    Progress,
    RanksFinished,
    RanksStarted,
    RanksStopped,
)
from holdfast.fresh_ids import uuid7
from holdfast.settings.timeouts import Timeouts
from holdfast_agent.plan.actions import Acknowledge, CloseStores, Emit, EndZygote, Fork, OpenStore, Stop
from holdfast_agent.plan.inputs import (
    LogAlertSeen,
    Observed,
    OrderSeen,
    ShutdownRequested,
    StartFailed,
    StoreLost,
    ZygoteLost,
)
from holdfast_agent.plan.node_state import AgentState, RankStatus
from holdfast_agent.plan.planner import plan
from holdfast_agent.zygote.wire import LogAlert
from tests.scenes.agent import INCIDENT, START, Scene, order, running


def test_a_first_order_opens_the_store_and_forks() -> None:
    scene = Scene()
    assert scene.order(order(1)) == []
    scene.zygote()
    assert [type(action) for action in scene.actions] == [OpenStore, Fork]
    (started,) = (scene.run(), scene.said(RanksStarted))[1]
    assert [process.pid for process in started.ranks] == [100, 101]
    assert (started.job, started.generation, started.adopted) == ("job-1", 1, False)


def test_the_same_and_older_orders_change_nothing() -> None:
    scene = running(generation=2)
    before = scene.state
    scene.order(order(2))
    assert not scene.actions
    scene.order(order(1))
    scene.order(order(9, epoch=0))
    assert scene.state == before
    (refused,) = scene.said(OrderRefused)
    assert (refused.epoch, refused.generation, refused.newest_epoch, refused.newest_generation) == (0, 9, 1, 2)


def test_an_order_that_was_never_given_is_taken_back() -> None:
    scene = running(generation=2)
    scene.order(order(1, epoch=10**9, idle=True))
    scene.stopped(0, 1)
    scene.order(order(2))
    seen = OrderSeen(id=uuid7(), order=order(2), signed_at=START)
    assert "older" in plan(scene.state, seen, START, Timeouts()).reason
    forked = list(scene.forked)

    scene.order(order(2, supersedes=(10**9, 1)))
    (reported,) = [event for event in scene.said(OrderRefused) if event.is_obeyed]
    assert (reported.newest_epoch, reported.newest_generation, reported.newest_job) == (10**9, 1, "job-1")
    gone = scene.said(ProcessExited)
    assert [(event.generation, event.rank) for event in gone] == [(2, 0), (2, 1)]
    assert all(event.agent_was_away for event in gone), (
        "a control plane whose past was put back is no fault of the node"
    )
    assert scene.forked == forked, "ranks that may have run are never started again"

    scene.order(order(3))
    assert scene.forked[-1] == (1, 3)


def test_an_idle_order_in_the_place_of_a_forged_one_ends_its_ranks() -> None:
    scene = running()
    scene.order(order(7, epoch=5))
    scene.stopped(0, 1)
    assert scene.forked[-1] == (5, 7)
    scene.order(order(2, idle=True, supersedes=(5, 7)))
    assert Stop in [type(action) for action in scene.actions]
    assert not scene.said(ProcessExited)
    scene.stopped(0, 1)
    assert scene.said(RanksStopped)[0].ordered_generation == 2


def test_only_the_named_order_is_superseded() -> None:
    scene = running()
    scene.order(order(3))
    scene.stopped(0, 1)
    scene.order(order(2, supersedes=(1, 9)))
    assert scene.said(OrderRefused) and len(scene.actions) == 1


def test_the_next_generation_waits_until_the_present_ranks_are_gone() -> None:
    scene = running()
    scene.order(order(2))
    assert [type(action) for action in scene.actions] == [OpenStore, Stop]
    scene.stopped(0, 1)
    assert [type(action) for action in scene.actions] == [Emit, CloseStores, Fork]
    (stopped,) = scene.said(RanksStopped)
    assert (stopped.generation, stopped.ordered_generation, stopped.ranks) == (1, 2, (0, 1))
    scene.run(2)
    assert scene.said(RanksStarted)[0].generation == 2


def test_of_orders_that_come_during_a_stop_the_newest_is_obeyed() -> None:
    scene = running()
    scene.order(order(2))
    assert scene.order(order(3)) == []
    scene.stopped(0, 1)
    assert scene.did(OpenStore)[0].order.generation == 3
    assert scene.forked == [(1, 1), (1, 3)]


def test_an_idle_order_stops_and_says_so_even_if_nothing_ran() -> None:
    scene = Scene()
    scene.zygote()
    scene.order(order(4, idle=True, cause=INCIDENT))
    assert [type(action) for action in scene.actions] == [Stop]
    scene.stopped()
    (stopped,) = scene.said(RanksStopped)
    assert (stopped.ordered_generation, stopped.ranks, stopped.cause) == (4, (), INCIDENT)
    assert stopped.generation == 3, "the node is no member of generation 4: services would take it for a stranger"
    assert scene.order(order(4, idle=True)) == []


def test_ranks_that_wait_for_a_dead_one_get_no_grace() -> None:
    healthy = running()
    healthy.order(order(2), in_collective=(0, 1))
    assert healthy.did(Stop) == [Stop(number=1, at_once=(), is_urgent=False)], "a handler may save in its grace"
    broken = running()
    broken.end(1, signal=9)
    broken.order(order(2), in_collective=(0,))
    assert broken.did(Stop) == [Stop(number=1, at_once=(0,), is_urgent=True)]
    elsewhere = running()
    elsewhere.order(order(2, incident=INCIDENT), in_collective=(0, 1))
    assert elsewhere.did(Stop) == [Stop(number=1, at_once=(0, 1), is_urgent=True)]


def test_an_end_by_signal_is_evidence_once() -> None:
    scene = running()
    scene.end(1, signal=9)
    (exited,) = scene.said(ProcessExited)
    assert (exited.rank, exited.signal, exited.step, exited.steps_done, exited.pid) == (1, 9, 9, 10, 101)
    assert len(scene.did(Acknowledge)) == 1
    scene.end(1, signal=9)
    assert scene.said(ProcessExited) == []
    assert len(scene.did(Acknowledge)) == 1


def test_ranks_are_finished_when_all_ended_with_zero() -> None:
    scene = running()
    scene.end(0, code=0)
    assert scene.said(RanksFinished) == scene.said(ProcessExited) == []
    scene.end(1, code=0)
    assert scene.said(RanksFinished)[0].ranks == (0, 1)
    mixed = running()
    mixed.end(0, code=1)
    mixed.end(1, code=0)
    assert mixed.said(RanksFinished) == []


def test_the_end_of_a_rank_names_the_ranks_that_ended_with_zero_before() -> None:
    scene = running()
    scene.end(0, code=0)
    assert scene.said(ProcessExited) == []
    scene.end(1, code=1)
    assert [exited.finished_ranks for exited in scene.said(ProcessExited)] == [(0,)]


def test_a_restarted_agent_adopts_what_lives_and_reports_what_does_not() -> None:
    scene = running()
    scene.state = AgentState(node="n", instance=uuid7(), durable=scene.state.durable)
    scene.zygote((0, 100))
    (adopted,) = scene.said(RanksStarted)
    assert adopted.adopted
    assert [process.rank for process in adopted.ranks] == [0]
    (lost,) = scene.said(ProcessExited)
    assert (lost.rank, lost.exit_code, lost.signal) == (1, None, None)
    assert lost.detail == "not found when the agent came back"
    assert scene.order(order(1)) == []
    assert scene.forked == [(1, 1)]


def test_an_agent_killed_before_it_forked_does_not_fork_later() -> None:
    scene = Scene()
    scene.zygote()
    scene.order(order(1))
    scene.state = AgentState(node="n", instance=uuid7(), durable=scene.state.durable)
    scene.zygote()
    assert [exited.rank for exited in scene.said(ProcessExited)] == [0, 1]
    scene.order(order(1))
    assert scene.forked == [(1, 1)]


def test_an_agent_that_lost_its_memory_adopts_by_the_zygotes_word() -> None:
    scene = Scene()
    scene.zygote((0, 100), (1, 101), fence=(1, 3), order=order(3).encode())
    assert scene.said(RanksStarted)[0].generation == 3
    assert scene.order(order(3)) == []


def test_ranks_of_an_unknown_order_are_ended_first() -> None:
    scene = Scene()
    scene.zygote((0, 100), fence=(1, 3), order=b"?")
    assert scene.did(Stop)[0].at_once == (0,)
    assert scene.order(order(4)) == []
    scene.stopped(0)
    assert scene.forked == [(1, 4)]


def test_the_zygotes_end_is_the_ranks_end() -> None:
    scene = running()
    scene.see(ZygoteLost)
    assert [exited.detail for exited in scene.said(ProcessExited)] == [
        "the node's zygote ended, and its ranks with it"
    ] * 2
    scene.order(order(2))
    scene.zygote()
    assert [type(action) for action in scene.actions] == [OpenStore, Stop]
    scene.stopped()
    assert scene.forked == [(1, 1), (1, 2)]


def test_the_zygotes_end_during_a_stop_ends_the_stop() -> None:
    scene = running()
    scene.order(order(2))
    scene.see(ZygoteLost)
    assert scene.said(RanksStopped)[0].ranks == (0, 1)
    assert scene.forked == [(1, 1)]
    scene.zygote()
    assert scene.forked == [(1, 1), (1, 2)]


def test_ranks_that_cannot_be_forked_are_reported_with_the_reason() -> None:
    scene = Scene()
    scene.zygote()
    scene.order(order(1))
    scene.see(StartFailed, fence=(1, 1), reason="out of processes")
    assert [exited.detail for exited in scene.said(ProcessExited)] == ["out of processes"] * 2


def test_a_lost_store_ends_ranks_that_have_not_met() -> None:
    scene = running()
    scene.see(StoreLost, fence=(1, 1), reason="port 1 is not ours")
    assert len(scene.did(Stop)) == 1
    scene.stopped(0, 1)
    assert ["port 1 is not ours" in exited.detail for exited in scene.said(ProcessExited)] == [True, True]
    training = running()
    training.observe(1, 1)
    assert training.see(StoreLost, fence=(1, 1), reason="killed") == []


def test_cut_off_ranks_train_on_and_are_ended_once_they_stand_still() -> None:
    scene = running()
    lease_s = Timeouts().lease_s
    scene.observe(1, 1, cut_off_s=1.0)
    scene.now += timedelta(seconds=lease_s)
    scene.observe(2, 2, cut_off_s=lease_s)
    assert scene.did(Stop) == []
    scene.now += timedelta(seconds=lease_s)
    scene.observe(2, 2, cut_off_s=2 * lease_s)
    assert len(scene.did(Stop)) == 1
    scene.stopped(0, 1)
    assert "no contact with the bus" in scene.said(ProcessExited)[0].detail
    assert scene.said(RanksStopped) == []


def test_progress_is_reported_on_after_a_clock_that_was_ahead_is_put_back() -> None:
    scene = running()
    for ahead, steps in ((timedelta(0), 1), (timedelta(days=365), 2), (timedelta(seconds=2), 3)):
        scene.now += ahead
        scene.observe(steps, steps)
        assert scene.said(Progress), f"none at step {steps}"
        scene.now -= ahead
        scene.now += timedelta(seconds=2)


def test_leaving_stops_the_ranks_then_says_goodbye() -> None:
    scene = running()
    scene.see(ShutdownRequested)
    assert [type(action) for action in scene.actions] == [Stop]
    assert scene.order(order(2)) == []
    scene.stopped(0, 1)
    assert len(scene.said(RanksStopped)) == len(scene.said(NodeDeparted)) == len(scene.did(EndZygote)) == 1
    scene.see(ZygoteLost)
    assert scene.said(NodeDeparted) == []


def test_the_same_input_says_the_same_to_the_letter() -> None:
    scene = running()
    seen = Observed(id=uuid7(), statuses={0: RankStatus(steps_done=1), 1: RankStatus(steps_done=1)})
    assert plan(scene.state, seen, scene.now, Timeouts()) == plan(scene.state, seen, scene.now, Timeouts())


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("order"), st.integers(1, 5), st.booleans()),
        st.tuples(st.just("forked"), st.integers(1, 5), st.just(False)),
        st.tuples(st.just("end"), st.integers(0, 1), st.booleans()),
        st.tuples(
            st.sampled_from(["stopped", "lost", "found", "restart", "observe"]), st.integers(1, 5), st.booleans()
        ),
    ),
    max_size=40,
)


@settings(max_examples=400)
@given(_steps)
def test_whatever_happens_no_order_is_forked_twice_nor_one_below_another(steps: list[tuple[str, int, bool]]) -> None:
    scene = Scene()
    for what, number, flag in steps:
        match what:
            case "order":
                scene.order(order(number, idle=flag))
            case "forked":
                scene.run(number)
            case "end":
                scene.end(number, code=0 if flag else 1, generation=max(1, scene.forked[-1][1] if scene.forked else 1))
            case "stopped":
                scene.stopped()
            case "lost":
                scene.see(ZygoteLost)
            case "found":
                scene.zygote()
            case "restart":
                scene.state = AgentState(node="n", instance=uuid7(), durable=scene.state.durable)
            case "observe":
                scene.observe(1, 1)
        assert scene.state.durable.crew is None or scene.state.durable.order is not None
    assert scene.forked == sorted(set(scene.forked))


def test_log_alerts_of_running_ranks_are_reported_without_further_action() -> None:
    scene = running(incident=INCIDENT)
    alert = LogAlert(
        fence=(1, 1), rank=1, stream="err", signature="disk_full", symptom="disk", lines=("No space",), count=3
    )
    before = scene.state
    scene.see(LogAlertSeen, alert=alert, step=7)
    (said,) = scene.said(LogSignature)
    assert (said.rank, said.signature, said.stream, said.lines, said.count, said.step) == (
        *(1, "disk_full", "err", ("No space",), 3, 7),
    )
    # Before its first step it belongs to the incident that its order belongs to.
    assert (said.job, said.generation, said.incident) == ("job-1", 1, INCIDENT)
    assert scene.state == before
    scene.see(LogAlertSeen, alert=msgspec.structs.replace(alert, fence=(1, 0)), step=7)
    assert not scene.actions
