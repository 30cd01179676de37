"""Which start of an agent the inventory believes: no forged registration locks the real agent out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.events import NodeDeparted, NodeInspected, NodeRefused, NodeRegistered
from holdfast.events.parts.job import AgentPlace, CheckResult, NodeFacts
from holdfast.fresh_ids import uuid7
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_standby.plan import InventoryPlanner
from holdfast_standby.state import Inventory, Node, NodeLiveness, NodeState

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FACTS = NodeFacts(
    address="10.0.0.1", hostname="host", boot_id="b", store_ports=(29500,), cpus=8, memory_bytes=1 << 34, version="test"
)
PLANNER = InventoryPlanner(Timeouts(), PoolPolicy())


def started(at: datetime) -> str:
    """The instance of an agent that started then."""
    return uuid7(int(at.timestamp() * 1000))


def registered(inventory: Inventory, instance: str, at: datetime) -> Inventory:
    event = NodeRegistered(id=uuid7(), at=at, source="test", node="a", instance=instance, facts=FACTS)
    return PLANNER.event(inventory, event, at).inventory


def standby(instance: str) -> Inventory:
    inspected = NodeInspected(
        id=uuid7(), at=NOW, source="test", node="a", instance=instance, checks=(CheckResult(name="disk", status="ok"),)
    )
    return PLANNER.event(registered(Inventory(), instance, NOW), inspected, NOW).inventory


def node(inventory: Inventory) -> Node:
    return inventory.nodes["a"]


def heard(instance: str, since: datetime, now: datetime) -> NodeLiveness:
    return NodeLiveness(last={"a": now}, listening_since=NOW, only={"a": (instance, since)})


def test_an_instance_of_the_far_future_is_not_believed() -> None:
    own = started(NOW)
    for forged in (started(NOW + timedelta(days=30)), "ffffffff-ffff-7fff-bfff-ffffffffffff"):
        believed = node(registered(standby(own), forged, NOW))
        assert (believed.instance, believed.state) == (own, NodeState.STANDBY)
        assert believed.reason.endswith("is not accepted: check the node's clock")
    later = started(NOW + timedelta(hours=1))
    assert node(registered(standby(own), later, NOW)).instance == later


def test_a_registration_that_no_living_agent_made_is_forgotten() -> None:
    own, forged = started(NOW), started(NOW + timedelta(hours=1))
    inventory = registered(standby(own), forged, NOW + timedelta(seconds=1))
    assert node(inventory).state is NodeState.REGISTERED

    soon = NOW + timedelta(seconds=5)
    assert node(PLANNER.time(inventory, heard(own, NOW, soon), soon).inventory).instance == forged
    later = NOW + timedelta(seconds=10)
    back = PLANNER.time(inventory, heard(own, NOW, later), later).inventory
    assert (node(back).instance, node(back).state) == (own, NodeState.STANDBY)


def test_an_agent_that_has_not_registered_yet_replaces_nothing() -> None:
    own, later = started(NOW), NOW + timedelta(seconds=30)
    for instance in (started(NOW + timedelta(seconds=9)), ""):
        assert node(PLANNER.time(standby(own), heard(instance, NOW, later), later).inventory).instance == own


def test_a_refused_agent_shows_on_the_node_and_its_departure_changes_nothing() -> None:
    own, other = started(NOW), started(NOW + timedelta(seconds=3))
    place = AgentPlace(hostname="elsewhere", pid=7, state_dir="/state")
    holder = AgentPlace(hostname="host", pid=5, state_dir="/state")
    refused = NodeRefused(
        id=uuid7(), at=NOW, source="test", node="a", instance=other, place=place, holder=holder, holder_instance=own
    )
    once = PLANNER.event(standby(own), refused, NOW)
    assert (node(once.inventory).instance, node(once.inventory).state) == (own, NodeState.STANDBY)
    assert "pid 7 on elsewhere" in node(once.inventory).reason
    assert "held by pid 5 on host" in node(once.inventory).reason
    assert not PLANNER.event(once.inventory, refused, NOW).events
    departed = NodeDeparted(id=uuid7(), at=NOW, source="test", node="a", instance=other)
    assert node(PLANNER.event(once.inventory, departed, NOW).inventory).state is NodeState.STANDBY


def test_an_agent_that_was_shut_down_comes_back_by_registering_only() -> None:
    """Under compose its heartbeats went on for longer than a second, and the next start sent some before it registered:
    the node was granted with ports of the agent that had ended, and the job refused it.
    """
    own, next_start = started(NOW), started(NOW + timedelta(seconds=15))
    departed = NodeDeparted(id=uuid7(), at=NOW, source="test", node="a", instance=own)
    gone = PLANNER.event(standby(own), departed, NOW).inventory
    assert node(gone).state is NodeState.LOST
    for instance in (own, next_start):
        heartbeat = NOW + timedelta(seconds=17)
        gone = PLANNER.time(gone, heard(instance, NOW, heartbeat), heartbeat).inventory
        assert node(gone).state is NodeState.LOST
    assert node(registered(gone, own, NOW + timedelta(seconds=17))).state is NodeState.LOST, "a late message"
    back = registered(gone, next_start, NOW + timedelta(seconds=18))
    assert (node(back).instance, node(back).state) == (next_start, NodeState.REGISTERED)
