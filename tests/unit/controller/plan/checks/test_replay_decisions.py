"""Machines that compute wrongly, now and then or always, in jobs of any shape: decided by the production code."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.events import (
    BadNumber,
    DeadlinePassed,
    Eviction,
    FirstStep,
    IncidentOpened,
    NodesGranted,
    RanksStarted,
    ReplayEnded,
    ReplayResult,
    ReplayStarted,
    StepRestorable,
    StepsCertified,
)
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.events.parts.ranks import RankReplay
from holdfast.ids import named_id
from holdfast.requests import SubmitJob
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast_controller.plan.draft import JobDecision, Rules
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Claiming, Replaying, Starting
from holdfast_controller.plan.planner import Planner

START = datetime(2026, 1, 1, tzinfo=UTC)
NEVER_CHECKS = MechanismPolicy(stop_time_checks="observe")


class Machines:
    """A job on machines of which some compute wrongly; `wrong` gives the chance that one does so in a replay."""

    def __init__(self, pp: int, dp: int, wrong: dict[int, float], seed: int) -> None:
        self._planner = Planner(Rules(ladder=LadderPolicy(replay_suspects_max=1000), mechanisms=NEVER_CHECKS))
        self._ids = (named_id(START, number) for number in count())
        self._random = Random(seed)
        self.names = [f"m{machine}" for machine in range(pp * dp)]
        self._wrong = {self.names[machine]: chance for machine, chance in wrong.items()}
        self.now = START
        self.emitted: list[Any] = []
        spec = JobSpec(
            name="job", script="t.py", nnodes=pp * dp, mesh=f"dp={dp},pp={pp}", cwd="/", directory="/jobs/job"
        )
        request = SubmitJob(id=next(self._ids), asked_by="ada", spec=spec)
        self.state = self._adopt(self._planner.request(None, request, START))
        grants = tuple(Grant(node=name, epoch=1, address=name, store_ports=(1,)) for name in self.names)
        self.receive(NodesGranted, claim=self.state.claim, grants=grants)
        self._train()
        self.receive(StepRestorable, step=40, path="/c", checkpoint_bytes=1)

    def receive(self, event_type: Any, /, **fields: Any) -> None:
        self.now += timedelta(seconds=0.01)
        generation = fields.pop("generation", self.state.generation)
        event = event_type(id=next(self._ids), at=self.now, source="test", job="job", generation=generation, **fields)
        self._adopt(self._planner.event(self.state, event, self.now))

    def fail_twice(self) -> None:
        for step in (50, 57):
            self.receive(BadNumber, step=step, quantity="loss", kind="nan", certified=46)
            if isinstance(self.state.phase, Starting):
                self._train()

    def fail_and_recover(self, step: int, node: str | None = None, kind: str = "nan") -> None:
        """Go through an incident of bad numbers that a restart in place ends, with all phases of its replay."""
        about = {"rank": self.names.index(node), "elsewhere": "sound"} if node else {"elsewhere": "bad"}
        self.receive(BadNumber, step=step, quantity="loss", kind=kind, certified=step - 11, **about)
        self.replay()
        if isinstance(self.state.phase, Starting):
            self._train()
            self.receive(StepsCertified, step=step + 1, newest_step=step + 12)
            assert self.state.incident is None

    def replay(self) -> None:
        """Every phase that is asked for, to the end."""
        while isinstance(self.state.phase, Replaying):
            started = [it for it in self.emitted if isinstance(it, ReplayStarted)][-1]
            for group in started.groups:
                is_wrong = any(self._random.random() < self._wrong.get(name, 0) for name in group)
                digest = f"{self._random.random()}" if is_wrong else "right"
                for place, name in enumerate(group):
                    replay = RankReplay(first=41, last=60, digest=f"{digest} {place}")
                    self.receive(ReplayResult, node=name, rank=place, replay=replay)

    @property
    def replayed_after(self) -> list[int]:
        """Return the number of incidents that there were at the beginning of each replay."""
        opened = 0
        found = []
        for event in self.emitted:
            opened += isinstance(event, IncidentOpened)
            if isinstance(event, ReplayStarted) and event.phase == "horizontal":
                found.append(opened)
        return found

    @property
    def evicted(self) -> set[int]:
        return {self.names.index(it.node or "") for it in self.emitted if isinstance(it, Eviction)}

    def _train(self) -> None:
        for name in self.names:
            self.receive(RanksStarted, node=name, ranks=(), took_s=0.1)
        for name in self.names:
            self.receive(FirstStep, node=name, step=47, completed_at=self.now)

    def _adopt(self, outcome: JobDecision) -> JobState:
        assert outcome.state is not None
        self.state = outcome.state
        self.emitted += outcome.events
        return self.state


shapes = st.tuples(st.integers(1, 4), st.integers(2, 9))


@given(shapes, st.data())
@settings(max_examples=40, deadline=None)
def test_a_machine_that_always_computes_wrongly_is_the_only_one_evicted_where_the_shape_can_tell(
    shape: tuple[int, int], data: st.DataObject
) -> None:
    pp, dp = shape
    culprit = data.draw(st.integers(0, pp * dp - 1))
    machines = Machines(pp, dp, {culprit: 1.0}, data.draw(st.integers()))
    machines.fail_twice()
    machines.replay()
    started = next(it for it in machines.emitted if isinstance(it, ReplayStarted))
    size, groups = len(started.groups[0]), len(started.groups)
    if size <= groups:
        assert machines.evicted == {culprit}
        assert isinstance(machines.state.phase, Claiming)
    else:
        (ended,) = (it for it in machines.emitted if isinstance(it, ReplayEnded))
        named = {*ended.suspects, *ended.candidates}
        assert machines.names[culprit] in named
        assert len(named) <= -(-size // groups)


@given(shapes, st.data())
@settings(max_examples=40, deadline=None)
def test_a_machine_that_sometimes_computes_wrongly_never_gets_another_one_evicted(
    shape: tuple[int, int], data: st.DataObject
) -> None:
    pp, dp = shape
    culprit = data.draw(st.integers(0, pp * dp - 1))
    machines = Machines(pp, dp, {culprit: 0.6}, data.draw(st.integers()))
    machines.fail_twice()
    machines.replay()
    assert machines.state.replay is None
    if pp <= dp:
        assert machines.evicted <= {culprit}


@pytest.mark.parametrize("heard", [False, True])
def test_a_machine_that_is_silent_until_the_deadline_is_evicted(heard: bool) -> None:
    machines = Machines(1, 4, {}, 1)
    machines.fail_twice()
    for name in machines.names[:3]:
        machines.receive(ReplayResult, node=name, rank=0, replay=RankReplay(first=41, last=60, digest="right"))
    machines.now += timedelta(seconds=1801)
    machines._adopt(machines._planner.time(machines.state, machines.now, START if heard else None))
    assert machines.evicted == ({3} if heard else set())
    assert [it.missing_nodes for it in machines.emitted if isinstance(it, DeadlinePassed)] == [("m3",)] * heard


def test_a_result_for_a_rank_of_another_machine_is_ignored() -> None:
    machines = Machines(2, 4, {}, 1)
    machines.fail_twice()
    started = next(it for it in machines.emitted if isinstance(it, ReplayStarted))
    for number, group in enumerate(started.groups):
        for place, name in enumerate(group):
            rank = 0 if number == 0 else place
            machines.receive(ReplayResult, node=name, rank=rank, replay=RankReplay(first=41, last=60, digest=f"{rank}"))
    machines.now += timedelta(seconds=1801)
    machines._adopt(machines._planner.time(machines.state, machines.now, START))
    silent = [it.missing_nodes for it in machines.emitted if isinstance(it, DeadlinePassed)]
    assert silent == [tuple(started.groups[0][1:])]


def test_a_machine_that_spoils_numbers_every_few_hours_is_found_in_the_third_incident() -> None:
    machines = Machines(1, 9, {4: 1.0}, 1)
    for incident in range(3):
        machines.now += timedelta(hours=6)
        machines.fail_and_recover(1000 * (incident + 1))
    assert machines.replayed_after == [3]
    assert machines.evicted == {4}
    reasons = [it.reason for it in machines.emitted if isinstance(it, IncidentOpened)]
    assert reasons[0].endswith("on several nodes")
    assert reasons[2].endswith("the job had bad numbers 2 times within 12.0 h before, and nothing explains them")


def test_a_replay_that_found_nothing_is_repeated_after_twice_as_many_incidents() -> None:
    machines = Machines(1, 4, {}, 1)
    for incident in range(12):
        machines.now += timedelta(hours=2)
        machines.fail_and_recover(1000 * (incident + 1))
    assert machines.replayed_after == [3, 6, 12]
    assert not machines.evicted


def test_bad_numbers_of_long_ago_lead_to_no_replay() -> None:
    machines = Machines(1, 4, {}, 1)
    for incident in range(4):
        machines.now += timedelta(days=3)
        machines.fail_and_recover(1000 * (incident + 1))
    assert machines.replayed_after == []


@pytest.mark.parametrize(
    ("second", "kind", "leaves"),
    [("m1", "nan", True), ("m2", "nan", False), ("m1", "jump", False)],
    ids=["its own", "another's", "a jump, which may be its data's"],
)
def test_a_node_that_is_alone_with_bad_numbers_in_two_incidents_leaves_for_a_test(
    second: str, kind: str, leaves: bool
) -> None:
    machines = Machines(1, 4, {}, 1)
    machines.fail_and_recover(1000, "m1", kind)
    machines.now += timedelta(hours=1)
    machines.fail_and_recover(1025, second, kind)
    asked = machines.state.replacement
    assert (asked.leaving if asked else ()) == (("m1",) if leaves else ())
