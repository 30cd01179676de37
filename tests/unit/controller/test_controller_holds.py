"""Jobs that hold one node, nodes that leave before their grant arrives, and clocks that are set back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from holdfast.events import NodeDeparted, NodesGranted, NodesReleased, NodesRequested, OrderRefused
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.fresh_ids import uuid7
from holdfast_controller.plan.draft import JobDraft, Rules
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.loss.forgotten_orders import GENERATIONS_FORGOTTEN_MAX
from holdfast_controller.plan.phase import Claiming, Running
from holdfast_controller.service import Controller
from holdfast_controller.store import INCIDENTS, JOBS, USED_NAMES

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(name: str, epoch: int, generation: int) -> JobState:
    return JobState(
        spec=JobSpec(name=name, script="t.py", cwd="/", directory=f"/jobs/{name}"),
        phase=Running(since=NOW, step_seen_at=NOW),
        submitted_at=NOW,
        members=(Grant(node="node-0", epoch=epoch, address="10.0.0.1", store_ports=(29500,)),),
        generation=generation,
        ordered_by=uuid7(),
    )


def controller(*jobs: JobState) -> Controller:
    made = Controller(Rules())
    made.load({JOBS.name: {state.job: state for state in jobs}, INCIDENTS.name: {}, USED_NAMES.name: {}})
    return made


def test_a_departure_reaches_the_job_that_may_be_granted_the_node() -> None:
    claim = uuid7()
    waiting = job("waiting", 1, 1).update(phase=Claiming(claim=claim), members=(None,), claimed_at=NOW)
    service = controller(waiting, job("training", 1, 1))
    agent = uuid7()
    departed = NodeDeparted(id=uuid7(), at=NOW, source="agent/free", node="free", instance=agent)
    service.adopt(service.on_event(departed, NOW))
    grant = Grant(node="free", epoch=1, instance=agent, address="10.0.0.1", store_ports=(29500,))
    granted = NodesGranted(id=uuid7(), at=NOW, source="standby", job="waiting", claim=claim, grants=(grant,))
    released, requested = service.on_event(granted, NOW).events
    # The inventory may have taken it back meanwhile, and granted it: nothing else would set it free.
    assert isinstance(released, NodesReleased) and isinstance(requested, NodesRequested)
    assert (released.nodes, released.epochs, released.departed) == (("free",), (1,), (agent,))


def refused(name: str, order: tuple[int, int], newest: tuple[int, int]) -> OrderRefused:
    return OrderRefused(
        id=uuid7(),
        at=NOW,
        source="agent/node-0",
        job=name,
        node="node-0",
        epoch=order[0],
        generation=order[1],
        newest_epoch=newest[0],
        newest_generation=newest[1],
    )


def test_a_job_that_lost_a_node_does_not_supersede_the_order_of_its_new_job() -> None:
    there = controller(job("lost", 1, 3), job("holds", 2, 4))
    assert not there.on_event(refused("lost", (1, 3), (2, 4)), NOW).orders
    assert [order.fence for order in there.orders_in_force()] == [(2, 4)]


def test_the_job_that_holds_the_node_supersedes_a_forged_order() -> None:
    there = controller(job("lost", 1, 3), job("holds", 2, 4))
    assert not there.on_event(refused("lost", (1, 3), (10**9, 1)), NOW).orders
    (order,) = there.on_event(refused("holds", (2, 4), (10**9, 1)), NOW).orders
    assert (order.job, order.supersedes) == ("holds", (10**9, 1))


@pytest.mark.parametrize(
    ("newest_job", "newest", "then"),
    [
        ("job", (2, 9), 10),
        ("job", (7, 9), 10),
        ("other", (2, 9), 5),
        (None, (2, 9), 5),
        ("job", (2, 5 + GENERATIONS_FORGOTTEN_MAX), 5),
    ],
    ids=["same hand-over", "later hand-over", "another job", "no job", "forged"],
)
def test_the_next_generation_is_above_one_that_a_restored_database_forgot(
    newest_job: str | None, newest: tuple[int, int], then: int
) -> None:
    there = controller(job("job", 2, 4))
    obeyed = msgspec.structs.replace(refused("job", (2, 4), newest), newest_job=newest_job, is_obeyed=True)
    effect = there.on_event(obeyed, NOW)
    assert not effect.orders, "the agent runs nothing else already"
    there.adopt(effect)
    assert there.jobs["job"].next_generation == then


def test_a_newer_claim_is_never_dated_before_an_older_one() -> None:
    draft = JobDraft(job("job", 1, 1), uuid7(), NOW, Rules())
    draft.request_nodes("first")
    later = JobDraft(draft.decision().state or draft.state, uuid7(), NOW - timedelta(hours=1), Rules())
    later.request_nodes("second, after the clock was set back")
    later.release_all("the job is over")
    emitted = [*draft.decision().events, *later.decision().events]
    first, second = (event for event in emitted if isinstance(event, NodesRequested))
    (released,) = (event for event in emitted if isinstance(event, NodesReleased))
    assert first.at < second.at < released.at
    assert released.at - first.at < timedelta(seconds=1)
    assert msgspec.json.decode(msgspec.json.encode(second.at), type=datetime) > first.at
