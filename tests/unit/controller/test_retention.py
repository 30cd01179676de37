"""Retention: the controller deletes ended jobs after a while, the inventory lost nodes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.effects import Effect, RowWrite
from holdfast.events import NodeRegistered
from holdfast.events.parts.job import JobSpec, NodeFacts
from holdfast.fresh_ids import uuid7
from holdfast.requests import Answer, StopJob, SubmitJob
from holdfast.settings.load import ConfigRefused, load
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.retention import RetentionPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_controller.plan.draft import Rules
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Claiming, Ended, JobOutcome
from holdfast_controller.service import FORGOTTEN_AT_ONCE_MAX, Controller
from holdfast_controller.store import JOBS, USED_NAMES, UsedName
from holdfast_standby.service import Standby
from holdfast_standby.state import Node, NodeState
from holdfast_standby.store import CLAIMS, NODES

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
FACTS = NodeFacts(address="h", hostname="h", boot_id="b", store_ports=(1,), cpus=1, memory_bytes=1, version="t")


def spec(name: str) -> JobSpec:
    return JobSpec(name=name, script="t.py", nnodes=1, cwd="/", directory=f"/jobs/{name}")


def ended(name: str, at: datetime) -> JobState:
    return JobState(
        spec=spec(name),
        phase=Ended(outcome=JobOutcome.COMPLETED, exit_code=0, at=at),
        submitted_at=at,
        members=(None,),
    )


def controller(*jobs: JobState) -> Controller:
    made = Controller(Rules())
    made.load({JOBS.name: {state.job: state for state in jobs}, USED_NAMES.name: {}})
    return made


def forgotten(name: str, ended_at: datetime) -> tuple[RowWrite, ...]:
    return (
        RowWrite(table=JOBS, key=name, row=None),
        RowWrite(table=USED_NAMES, key=name, row=UsedName(ended_at=ended_at)),
    )


def pass_time(decider: Controller | Standby, now: datetime) -> Effect:
    effect = decider.on_time(now, NOW - DAY)
    decider.adopt(effect)
    return effect


def test_a_job_is_deleted_thirty_days_after_its_end_and_its_name_stays_reserved() -> None:
    live = JobState(spec=spec("live"), phase=Claiming(), submitted_at=NOW - 90 * DAY, members=(None,))
    kept = controller(ended("late", NOW + DAY), live, ended("early", NOW))
    assert pass_time(kept, NOW + 29.9 * DAY).is_nothing
    assert pass_time(kept, NOW + 30 * DAY) == Effect(rows=forgotten("early", NOW))
    assert set(kept.jobs) == {"live", "late"}
    assert pass_time(kept, NOW + 30 * DAY).is_nothing

    def answer(to: Controller, name: str) -> Answer:
        return to.on_request(SubmitJob(id=uuid7(), asked_by="ada", spec=spec(name)), NOW + 30 * DAY).answer

    def answer_to_stop(to: Controller, name: str) -> Answer:
        return to.on_request(StopJob(id=uuid7(), asked_by="ada", job=name), NOW + 30 * DAY).answer

    again = controller()
    again.load({JOBS.name: {}, USED_NAMES.name: {"early": UsedName(ended_at=NOW)}})
    for refusing in (kept, again):
        for refused in (answer(refusing, "early"), answer_to_stop(refusing, "early")):
            assert not refused.accepted
            assert f"job early ended on {NOW:%Y-%m-%d} and was forgotten; its name stays taken" in refused.message
        assert "there is no job named never" in answer_to_stop(refusing, "never").message
        assert answer(refusing, "new").accepted
    assert pass_time(kept, NOW + 31 * DAY).rows == forgotten("late", NOW + DAY)
    assert set(kept.jobs) == {"live"}


def test_a_job_that_ends_while_the_controller_runs_is_deleted_as_well() -> None:
    kept = controller()
    kept.adopt(kept.on_request(SubmitJob(id=uuid7(), asked_by="ada", spec=spec("job")), NOW))
    kept.adopt(kept.on_request(StopJob(id=uuid7(), asked_by="ada", job="job"), NOW))
    assert kept.jobs["job"].phase_name == "stopped"
    assert pass_time(kept, NOW + 29 * DAY).is_nothing
    assert pass_time(kept, NOW + 30 * DAY).rows == forgotten("job", NOW)
    assert kept.jobs == {}


def test_many_jobs_are_deleted_in_batches() -> None:
    kept = controller(*(ended(f"job-{number}", NOW) for number in range(FORGOTTEN_AT_ONCE_MAX + 1)))
    assert len(pass_time(kept, NOW + 30 * DAY).rows) == 2 * FORGOTTEN_AT_ONCE_MAX
    assert len(pass_time(kept, NOW + 30 * DAY).rows) == 2
    assert pass_time(kept, NOW + 30 * DAY).is_nothing


def test_a_deleted_node_is_unknown_until_it_registers() -> None:
    lost = Node(id="a", state=NodeState.LOST, since=NOW, instance=uuid7(), facts=FACTS, epoch=4)
    standby = Standby(Timeouts(), PoolPolicy(), RetentionPolicy(lost_nodes_days=8))
    standby.load({NODES.name: {"a": lost}, CLAIMS.name: {}})
    standby.last_heartbeats["a"] = NOW
    assert pass_time(standby, NOW + 7.9 * DAY).is_nothing
    effect = pass_time(standby, NOW + 8 * DAY)
    assert effect.rows == (RowWrite(table=NODES, key="a", row=None),)
    assert [(event.node, event.reason) for event in effect.events] == [("a", "it was lost for 8 days")]  # type: ignore[attr-defined]
    assert standby.node("a") is None
    assert "a" not in standby.last_heartbeats
    back = NodeRegistered(id=uuid7(), at=NOW, source="agent/a", node="a", instance=uuid7(), facts=FACTS, epoch=4)
    standby.adopt(standby.on_event(back, NOW + 9 * DAY))
    assert standby.inventory.nodes["a"].epoch == 4


def test_a_lost_node_stays_while_it_is_on_the_blocklist() -> None:
    node = Node(
        id="a", state=NodeState.LOST, since=NOW, instance=uuid7(), facts=FACTS, blocked_until=NOW + 20 * DAY, epoch=4
    )
    standby = Standby(Timeouts(), PoolPolicy())
    standby.load({NODES.name: {"a": node}, CLAIMS.name: {}})
    assert pass_time(standby, NOW + 19 * DAY).is_nothing
    pass_time(standby, NOW + 20 * DAY)
    pass_time(standby, NOW + 20 * DAY)
    assert standby.node("a") is None


def test_retention_settings_have_limits() -> None:
    settings, listed = load({"HOLDFAST_RETENTION_ENDED_JOBS_DAYS": "90"})
    assert settings.retention == RetentionPolicy(ended_jobs_days=90)
    origins = {row.key: (row.value, row.origin) for row in listed if row.key.startswith("retention.")}
    assert origins == {
        "retention.ended_jobs_days": ("90", "HOLDFAST_RETENTION_ENDED_JOBS_DAYS"),
        "retention.node_records_days": ("180", "default"),
        "retention.lost_nodes_days": ("7", "default"),
        "retention.jobs_on_node_max": ("20", "default"),
    }
    for key, refused in (("ENDED_JOBS_DAYS", "0.5"), ("LOST_NODES_DAYS", "6.5"), ("JOBS_ON_NODE_MAX", "0")):
        with pytest.raises(ConfigRefused, match="must be at least"):
            load({f"HOLDFAST_RETENTION_{key}": refused})
