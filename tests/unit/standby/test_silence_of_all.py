"""What took all nodes at once had one cause: none is lost because it is heard later than the first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.events import NodeLost
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_standby.service import Standby
from holdfast_standby.state import Inventory, Node, NodeState
from tests.unit.standby.test_standby_instances import FACTS, NOW, started

START = datetime(2026, 1, 1, 11, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def lost_at(standby: Standby, seconds: float) -> list[str | None]:
    effect = standby.on_time(at(seconds), START)
    standby.adopt(effect)
    return [event.node for event in effect.events if isinstance(event, NodeLost)]


def three_nodes() -> Standby:
    standby = Standby(Timeouts(), PoolPolicy())
    nodes = {
        name: Node(id=name, state=NodeState.ACTIVE, since=START, instance=started(START), facts=FACTS) for name in "abc"
    }
    standby.inventory = Inventory(nodes=nodes)
    return standby


def test_nodes_that_fall_silent_within_a_heartbeat_are_not_lost_one_after_the_other() -> None:
    """The bus stands still, and this service has not noticed yet."""
    standby = three_nodes()
    standby.last_heartbeats.update(a=at(0), b=at(0.4), c=at(0.9))
    for tenth in range(55, 75):
        assert lost_at(standby, tenth / 10) == []


def test_a_node_is_lost_while_others_are_heard() -> None:
    standby = three_nodes()
    standby.last_heartbeats.update(a=at(0), b=at(5.2), c=at(0.9))
    assert lost_at(standby, 5.9) == []
    assert lost_at(standby, 6.1) == ["a"]


def test_a_node_that_is_heard_later_than_the_first_is_not_lost() -> None:
    standby = three_nodes()
    standby.last_heartbeats.update(dict.fromkeys("abc", at(0)))
    assert lost_at(standby, 1) == []
    # All are silent for a minute, as without power.
    assert lost_at(standby, 60) == []
    standby.last_heartbeats["a"] = at(61)
    assert lost_at(standby, 61.5) == []
    standby.last_heartbeats["a"] = standby.last_heartbeats["b"] = at(68)
    assert lost_at(standby, 68.5) == []
    # The third gets three times the limit.
    standby.last_heartbeats["a"] = standby.last_heartbeats["b"] = at(80)
    assert lost_at(standby, 80.5) == ["c"]
