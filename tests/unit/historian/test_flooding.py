"""Which nodes have more than their share of what services have not read, by a sample."""

from __future__ import annotations

import random

import pytest

from holdfast.bus.backlog import Backlog, Look
from holdfast_historian.floods import flooding


def backlog(unread: int, *looks: Look) -> Backlog:
    return Backlog(unread=unread, positions=len(looks), looks=looks)


def test_a_node_has_too_many_or_too_long_messages_whatever_services_have() -> None:
    short, long, of_service = Look("many", 300), Look("long", 1_000_000), Look("", 300)
    found = flooding(backlog(60_000, *[short] * 64, *[of_service] * 36), 20_000, 1 << 29)
    assert found == {"many": 24_000}
    assert flooding(backlog(60_000, *[short] * 36, *[of_service] * 64), 20_000, 1 << 29) == {}
    assert flooding(backlog(2_000, *[short] * 36, *[long] * 64), 20_000, 1 << 29) == {"long": 800}
    assert flooding(backlog(900, *[short] * 36, *[long] * 64), 20_000, 1 << 29) == {}


def test_positions_without_a_message_count_for_no_node() -> None:
    holes = Backlog(unread=40_000, positions=100, looks=(Look("n1", 300),) * 40)
    assert flooding(holes, 20_000, 1 << 29) == {}


@pytest.mark.parametrize("nodes", [3, 20, 1000])
def test_none_of_many_nodes_is_taken_for_one_that_floods(nodes: int) -> None:
    # Services have been away for hours, and all nodes have published alike.
    chance = random.Random(7)
    for _ in range(300):
        looks = [Look(f"n{chance.randrange(nodes)}", 300) for _ in range(100)]
        assert flooding(backlog(15_000 * nodes, *looks), 20_000, 1 << 40) == {}
