"""A clock that was a year ahead for a while: what was noted then does not hold up the inventory."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from holdfast.events import NodesGranted, NodesReleased, NodesRequested
from holdfast.fresh_ids import uuid7
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_standby.plan import InventoryPlanner
from holdfast_standby.state import Inventory, Node, NodeState
from tests.unit.standby.test_silence_of_all import at, lost_at, three_nodes
from tests.unit.standby.test_standby_instances import FACTS, NOW

YEAR = timedelta(days=365)


def test_a_node_that_dies_while_the_clock_of_the_service_is_ahead_is_lost() -> None:
    standby = three_nodes()
    ahead = YEAR.total_seconds()
    standby.last_heartbeats.update(dict.fromkeys("abc", at(ahead)))
    # It changed its state then, too.
    nodes = dict(standby.inventory.nodes)
    nodes["a"] = msgspec.structs.replace(nodes["a"], since=NOW + YEAR)
    standby.inventory = Inventory(nodes=nodes)
    assert lost_at(standby, ahead) == []
    lost = []
    for second in range(1, 12):
        standby.last_heartbeats.update(dict.fromkeys("bc", at(second)))
        lost += lost_at(standby, second + 0.1)
    assert lost == ["a"]


def request(seconds: float) -> NodesRequested:
    return NodesRequested(id=uuid7(), at=at(seconds), source="controller", job="job", count=1, reason="test")


@pytest.mark.parametrize("is_over", [False, True])
def test_a_claim_by_a_clock_that_was_ahead_gives_way_to_the_next(is_over: bool) -> None:
    planner = InventoryPlanner(Timeouts(), PoolPolicy())
    inventory = planner.event(Inventory(), request(YEAR.total_seconds()), NOW).inventory
    if is_over:
        released = NodesReleased(
            id=uuid7(), at=NOW + YEAR, source="c", job="job", nodes=(), withdraws_claim=True, reason="test"
        )
        inventory = planner.event(inventory, released, NOW).inventory
    node = Node(id="a", state=NodeState.STANDBY, since=NOW, instance=uuid7(), facts=FACTS)
    inventory = msgspec.structs.replace(inventory, nodes={"a": node})
    if not is_over:
        inventory = planner.event(inventory, request(50), at(60)).inventory
    else:
        granted = planner.event(inventory, request(50), at(60))
        assert [type(event) for event in granted.events if isinstance(event, NodesGranted)] == [NodesGranted]
        inventory = granted.inventory
    assert inventory.claims["job"].requested_at == at(50)
    late = planner.event(inventory, request(40), at(61)).inventory
    assert late.claims["job"].requested_at == at(50)
