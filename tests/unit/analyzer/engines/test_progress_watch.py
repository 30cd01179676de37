"""When a job counts as standing still: by its own pace, its phase, and what its ranks wait for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.events import Progress, RanksFinished
from holdfast.events.parts.ranks import RankProgress
from holdfast.ids import named_id
from holdfast.settings.findings.hang import HangPolicy
from holdfast_analyzer.engines.hang.progress_watch import ProgressWatch, Stall

START = datetime(2026, 1, 1, tzinfo=UTC)
NODES = ("a", "b")
STEP_S = 0.5


class Job:
    """Two nodes with two ranks each, of which the last word is received now."""

    def __init__(self, policy: HangPolicy | None = None) -> None:
        self.watch = ProgressWatch(policy or HangPolicy())
        self.now = START

    def tell(self, *ranks: dict[str, Any], generation: int = 1, nodes: tuple[str, ...] = NODES) -> None:
        """Each node tells of its ranks; one dictionary for all ranks, or one for each."""
        self.now += timedelta(seconds=1)
        each = ranks * 4 if len(ranks) == 1 else ranks
        for number, node in enumerate(NODES):
            if node not in nodes:
                continue
            reported = tuple(rank(number * 2 + local, **each[number * 2 + local]) for local in range(2))
            event = Progress(
                id=named_id(self.now, node),
                at=self.now,
                source=f"agent/{node}",
                job="job",
                generation=generation,
                node=node,
                ranks=reported,
                world_size=4,
                nproc_per_node=2,
            )
            self.watch.take(event, self.now)

    def stall(self, step_s: float | None = STEP_S) -> Stall | None:
        return self.watch.stall(step_s, self.now)


def rank(number: int, **fields: Any) -> RankProgress:
    usual: dict[str, Any] = {"rank": number, "step": 99, "phase": "train", "steps_done": 50}
    return RankProgress(**(usual | fields))


def still(for_s: float, **fields: Any) -> dict[str, Any]:
    return {"since_change_s": for_s, "since_step_s": for_s, **fields}


def inside(for_s: float, **fields: Any) -> dict[str, Any]:
    return still(for_s, in_collective=1, collective="all_reduce", **fields)


@pytest.mark.parametrize(("for_s", "stands"), [(4.9, False), (5.1, True)])
def test_a_job_stalls_after_ten_steps_without_progress(for_s: float, stands: bool) -> None:
    job = Job()
    job.tell(still(for_s))
    found = job.stall()
    assert (found is not None) is stands
    if found is not None:
        assert (found.sign, found.limit_s, found.step) == ("no_traffic", 5.0, 99)
        assert found.since == job.now - timedelta(seconds=5.1)


@pytest.mark.parametrize(
    ("for_s", "is_stopped", "stands"), [(60, False, False), (9.9, True, False), (10.1, True, True)]
)
def test_a_job_without_steps_stalls_soon_once_a_rank_is_stopped(for_s: float, is_stopped: bool, stands: bool) -> None:
    job = Job()
    starting = still(for_s, step=-1, steps_done=0, phase="init")
    job.tell(starting, starting, starting | {"is_stopped": is_stopped}, starting)
    assert (job.stall(step_s=None) is not None) is stands


def test_the_limit_follows_the_pace_and_is_longest_if_it_is_unknown() -> None:
    job = Job()
    job.tell(still(80))
    assert job.stall(step_s=10.0) is None
    assert job.stall(step_s=None) is None
    job.tell(still(130))
    found = job.stall(step_s=10.0)
    assert found is not None and found.limit_s == 100.0
    assert job.stall(step_s=None) is not None


def test_the_limit_is_shorter_while_other_ranks_wait() -> None:
    job = Job()
    job.tell(inside(3.2), inside(3.1), still(3.3), inside(3.2))
    found = job.stall()
    assert found is not None
    assert (found.sign, found.limit_s, found.outside, found.waiting) == ("waiting", 3.0, (2,), (0, 1, 3))
    job.tell(inside(3.2), inside(3.1), still(0.1), inside(3.2))
    assert job.stall() is None, "that rank moves: the others wait for it, no longer than they must"


def test_ranks_that_all_wait_in_collectives_are_stalled() -> None:
    job = Job()
    job.tell(inside(6.0))
    found = job.stall()
    assert found is not None and (found.sign, found.outside) == ("no_traffic", ())


@pytest.mark.parametrize(
    ("phase", "limit_s"),
    [("checkpoint", 600.0), ("eval", 1800.0), ("held", 300.0), ("my own phase", 600.0), ("restore", 450.0)],
)
def test_phases_have_separate_limits(phase: str, limit_s: float) -> None:
    job = Job()
    job.tell(inside(limit_s - 1), inside(limit_s - 1), still(limit_s - 1, phase=phase), inside(limit_s - 1))
    assert job.stall() is None, "whoever waits in a collective waits for the one in that phase"
    job.tell(inside(limit_s + 1), inside(limit_s + 1), still(limit_s + 1, phase=phase), inside(limit_s + 1))
    found = job.stall()
    assert found is not None and (found.limit_s, found.phase) == (limit_s, phase)


def test_the_limit_of_a_phase_does_not_apply_if_all_wait_in_collectives() -> None:
    job = Job()
    for phase in ("checkpoint", "eval", "my own phase"):
        job.tell(inside(4.9, phase=phase))
        assert job.stall() is None
        job.tell(inside(5.1, phase=phase))
        found = job.stall()
        assert found is not None and (found.sign, found.limit_s, found.phase) == ("no_traffic", 5.0, phase)
    job.tell(inside(60, phase="held"))
    assert job.stall() is None
    job.tell(inside(34, phase="init", steps_done=0))
    assert job.stall() is None


def test_training_that_is_held_inside_collectives_does_not_hang() -> None:
    job = Job()
    job.tell(inside(60, phase="held"), inside(60), still(60), inside(60, phase="held"))
    assert job.stall() is None
    job.tell(inside(60))
    assert job.stall() is not None


def test_the_first_step_of_a_generation_has_separate_limits() -> None:
    new: dict[str, Any] = {"steps_done": 0, "step": -1, "phase": "init"}

    def reported(for_s: float, step_s: float | None, others: list[dict[str, Any]]) -> Stall | None:
        job = Job()
        job.tell(*([still(for_s, **new), *others] if others else [still(for_s, **new)]))
        return job.stall(step_s)

    for step_s, limit_s, waiting_limit_s in ((None, 450.0, 120.0), (STEP_S, 35.0, 17.5)):
        assert reported(limit_s - 1, step_s, []) is None
        found = reported(limit_s + 1, step_s, [])
        assert found is not None and (found.sign, found.limit_s) == ("no_traffic", limit_s)
        others = [inside(waiting_limit_s + 1, **new)] * 3
        assert reported(waiting_limit_s - 1, step_s, others) is None
        found = reported(waiting_limit_s + 1, step_s, others)
        assert found is not None and (found.sign, found.limit_s) == ("waiting", waiting_limit_s)
        assert (found.outside, found.waiting, found.is_first_start) == ((0,), (1, 2, 3), step_s is None)


def test_ranks_at_the_rendezvous_wait_for_the_missing_ones() -> None:
    job = Job()
    new: dict[str, Any] = {"steps_done": 0, "step": -1}
    there = still(20.0, **new, phase="rendezvous")
    job.tell(there, there, still(20.0, **new, phase="init"), there)
    found = job.stall()
    assert found is not None and (found.sign, found.outside, found.waiting) == ("waiting", (2,), (0, 1, 3))
    job.tell(there, inside(20.0, **new), inside(20.0, **new), there)
    found = job.stall()
    assert found is not None and (found.outside, found.waiting) == ((0, 3), (1, 2)), "some have met, and go on"
    for for_s, stands in ((17.0, False), (18.0, True)):
        job = Job()
        job.tell(still(for_s, **new, phase="rendezvous"))
        assert (job.stall() is not None) is stands, "nobody is ahead of the others, and they do not meet"


def test_the_longest_duration_of_a_phase_is_learned() -> None:
    job = Job()
    job.tell(still(40, phase="eval"))
    job.tell(still(0.2))
    job.tell(still(119, phase="eval"))
    assert job.stall() is None
    job.tell(still(125, phase="eval"))
    found = job.stall()
    assert found is not None and found.limit_s == pytest.approx(123, abs=1)


def test_a_long_start_is_remembered_over_generations() -> None:
    job = Job()
    job.tell(still(430, steps_done=0, phase="restore"))
    job.tell(still(0.1))
    job.tell(still(1200, steps_done=0, phase="restore"), generation=2)
    assert job.stall() is None


def test_silence_of_a_node_is_no_stall() -> None:
    job = Job()
    job.tell(still(60))
    job.now += timedelta(seconds=5)
    assert job.stall() is None, "what was emitted last is too old"
    job.tell(still(60), nodes=("a",))
    assert job.stall() is None, "one node is not received of: that is another service's business"
    job.tell(still(60))
    assert job.stall() is not None
    job.tell(still(60), generation=2, nodes=("b",))
    assert job.stall() is None, "of the new generation half of the ranks are known"


def test_collectives_without_steps_are_a_stall() -> None:
    job = Job()
    job.tell({"since_change_s": 0.1, "since_step_s": 500.0})
    assert job.stall() is None
    job.tell({"since_change_s": 0.1, "since_step_s": 601.0})
    found = job.stall()
    assert found is not None and found.sign == "no_step"
    job.tell({"since_change_s": 0.1, "since_step_s": 601.0, "phase": "eval"})
    assert job.stall() is None


def test_ranks_that_have_ended_are_not_stalled() -> None:
    job = Job()
    job.tell(still(60, has_ended=True))
    assert job.stall() is None
    job.tell(still(60, has_ended=True), still(60, has_ended=True), still(60, has_ended=True), still(60))
    found = job.stall()
    assert found is not None and found.outside == (3,)


def test_a_node_whose_ranks_have_all_ended_does_not_count_as_silent() -> None:
    job = Job()
    job.tell(still(0.1))
    over = RanksFinished(
        id=named_id(job.now, "over"), at=job.now, source="agent/b", job="job", generation=1, node="b", ranks=(2, 3)
    )
    job.watch.finished(over, job.now)
    for second in range(1, 9):
        job.tell(still(second), nodes=("a",))
    found = job.stall()
    assert found is not None and found.outside == (0, 1)
    assert job.watch.nodes == ("a",) and job.watch.node_of_rank[3] == "b"
    job.tell(still(60), generation=2, nodes=("a",))
    assert job.stall() is None, "that was another generation"


def test_a_late_repetition_does_not_replace_a_newer_report() -> None:
    job = Job()
    job.tell(still(60))
    before = job.now
    job.tell(still(0.1))
    newest, job.now = job.now, before - timedelta(seconds=1)
    job.tell(still(60))
    job.now = newest
    assert job.stall() is None


def test_late_reports_of_an_earlier_generation_are_ignored() -> None:
    job = Job()
    job.tell(still(0.1), generation=2)
    job.tell(still(60), generation=1)
    assert job.stall() is None
    assert job.watch.nodes == NODES and job.watch.node_of_rank == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_a_node_whose_clock_was_ahead_for_a_moment_is_not_silent_afterwards() -> None:
    watch, received = ProgressWatch(HangPolicy()), START
    for ahead in (timedelta(0), timedelta(days=365), timedelta(0), timedelta(0)):
        received += timedelta(seconds=10)
        event = Progress(
            id=named_id(received, "a"),
            at=received + ahead,
            source="agent/a",
            job="job",
            generation=1,
            node="a",
            ranks=(rank(0),),
            world_size=1,
            nproc_per_node=1,
        )
        watch.take(event, received)
        assert watch.silent_nodes(received) == ()
