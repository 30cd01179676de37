"""Grants of claims, and the memory of claims that are over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.events import NodesAwaited, NodesGranted, NodesReleased, NodesRequested
from holdfast.events.parts.job import NodeFacts
from holdfast.fresh_ids import uuid7
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_standby.plan import CLAIMS_REMEMBERED, InventoryPlanner
from holdfast_standby.state import Inventory, Node, NodeLiveness, NodeState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FACTS = NodeFacts(
    address="10.0.0.7",
    hostname="h",
    boot_id="b",
    store_ports=(29500, 29501),
    cpus=1,
    memory_bytes=1,
    version="t",
    vault_port=7001,
    rack="r7",
)


def test_a_finished_claim_is_forgotten_when_no_older_one_can_arrive() -> None:
    planner = InventoryPlanner(Timeouts(), PoolPolicy())
    over = NodesReleased(
        id=uuid7(), at=NOW, source="controller", job="job", nodes=(), withdraws_claim=True, reason="the job is over"
    )
    inventory = planner.event(Inventory(), over, NOW).inventory
    assert list(inventory.claims) == ["job"]
    almost = NOW + CLAIMS_REMEMBERED - timedelta(seconds=1)
    assert list(planner.time(inventory, NodeLiveness(), almost).inventory.claims) == ["job"]
    assert not planner.time(inventory, NodeLiveness(), NOW + CLAIMS_REMEMBERED).inventory.claims


def test_a_claim_for_named_nodes_may_want_others_beside_them() -> None:
    planner = InventoryPlanner(Timeouts(), PoolPolicy())

    def node(name: str, state: NodeState) -> Node:
        blocked_until = NOW + timedelta(days=1) if state is NodeState.EVICTED else None
        return Node(id=name, state=state, since=NOW, instance=uuid7(), facts=FACTS, blocked_until=blocked_until)

    nodes = [node("a", NodeState.EVICTED), node("b", NodeState.EVICTED), node("d", NodeState.EVICTED)]
    asked = NodesRequested(
        id=uuid7(),
        at=NOW,
        source="controller",
        job="run",
        count=3,
        only=("a", "b"),
        witnesses=1,
        purpose="checks",
        reason="test",
    )
    outcome = planner.event(Inventory(nodes={each.id: each for each in nodes}), asked, NOW)
    (awaited,) = [event for event in outcome.events if isinstance(event, NodesAwaited)]
    assert (awaited.missing, awaited.missing_nodes) == ("no other node is free", ())
    nodes.append(node("c", NodeState.STANDBY))
    outcome = planner.event(Inventory(nodes={each.id: each for each in nodes}), asked, NOW)
    (granted,) = [event for event in outcome.events if isinstance(event, NodesGranted)]
    assert [grant.node for grant in granted.grants] == ["c", "a", "b"]


def test_a_grant_has_the_address_of_the_node() -> None:
    node = Node(id="node-7", state=NodeState.STANDBY, since=NOW, instance=uuid7(), facts=FACTS)
    asked = NodesRequested(id=uuid7(), at=NOW, source="controller", job="job", count=1, reason="test")
    said = InventoryPlanner(Timeouts(), PoolPolicy()).event(Inventory(nodes={node.id: node}), asked, NOW).events
    (granted,) = [event for event in said if isinstance(event, NodesGranted)]
    (grant,) = granted.grants
    assert (grant.node, grant.epoch, grant.instance, grant.address) == ("node-7", 1, node.instance, "10.0.0.7")
    assert (grant.store_ports, grant.vault_port, grant.rack) == ((29500, 29501), 7001, "r7")


def test_nodes_to_avoid_are_granted_last_the_worst_at_the_end() -> None:
    planner = InventoryPlanner(Timeouts(), PoolPolicy(size=0, quantile=0.0))
    free = {
        name: Node(id=name, state=NodeState.STANDBY, since=NOW, instance=uuid7(), facts=FACTS)
        for name in ("node-1", "node-2", "node-3", "node-10")
    }

    def granted(count: int, **fields: object) -> list[str]:
        fields = {"at": NOW, "source": "controller", "job": "job", "count": count, "reason": "test", **fields}
        asked = NodesRequested(id=uuid7(), avoid=("node-2", "node-1"), **fields)  # type: ignore[arg-type]
        events = planner.event(Inventory(nodes=free), asked, NOW).events
        return [grant.node for event in events if isinstance(event, NodesGranted) for grant in event.grants]

    assert granted(2) == ["node-3", "node-10"]
    assert granted(4) == ["node-3", "node-10", "node-1", "node-2"]
    assert granted(1, witnesses=1, purpose="checks") == ["node-3"]


def test_nodes_of_racks_to_avoid_are_granted_before_nodes_to_avoid_only() -> None:
    planner = InventoryPlanner(Timeouts(), PoolPolicy(size=0, quantile=0.0))
    racks = {"node-1": "r1", "node-2": "r2", "node-3": "r3", "node-4": "r3"}
    free = {
        name: Node(
            id=name,
            state=NodeState.STANDBY,
            since=NOW,
            instance=uuid7(),
            facts=msgspec.structs.replace(FACTS, rack=rack),
        )
        for name, rack in racks.items()
    }
    asked = NodesRequested(
        id=uuid7(),
        at=NOW,
        source="controller",
        job="job",
        count=4,
        reason="test",
        avoid=("node-3",),
        avoid_racks=("r1", "r2"),
    )
    (granted,) = [
        event for event in planner.event(Inventory(nodes=free), asked, NOW).events if isinstance(event, NodesGranted)
    ]
    assert [grant.node for grant in granted.grants] == ["node-4", "node-2", "node-1", "node-3"]
