"""The size of the warm pool: the 99th percentile of machines that fail together, by the fleet's own record."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from holdfast.events import Eviction, NodesAwaited, NodesGranted, NodesRequested
from holdfast.events.parts.job import NodeFacts
from holdfast.fresh_ids import uuid7
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_standby.plan import InventoryPlanner
from holdfast_standby.sizing import USUAL_PER_DAY, after_failure, failures_per_day, reserve, standbys
from holdfast_standby.state import Inventory, Node, NodeLiveness, NodeState

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
FACTS = NodeFacts(
    address="10.0.0.7", hostname="h", boot_id="b", store_ports=(1, 2), cpus=1, memory_bytes=1, version="t"
)


def fleet(training: int, free: int = 0, known_for: timedelta = timedelta()) -> dict[str, Node]:
    def node(number: int) -> Node:
        state = NodeState.ACTIVE if number < training else NodeState.STANDBY
        return Node(
            id=f"node-{number}",
            state=state,
            since=NOW - known_for,
            known_since=NOW - known_for,
            instance=uuid7(),
            facts=FACTS,
            job="old" if number < training else None,
        )

    return {node.id: node for node in map(node, range(training + free))}


def requested(job: str, count: int, generation: int = 0) -> NodesRequested:
    return NodesRequested(
        id=uuid7(), at=NOW, source="controller", job=job, count=count, generation=generation, reason="test"
    )


@pytest.mark.parametrize("per_day", [0.001165, USUAL_PER_DAY, 0.00125])
def test_byterobusts_table_5(per_day: float) -> None:
    assert [standbys(machines, per_day, 0.99) for machines in (128, 256, 512, 1024)] == [2, 2, 3, 4]


@pytest.mark.parametrize(("machines", "per_day"), [(1, 0.5), (9, 0.3), (40, 0.02), (2000, 0.004)])
@pytest.mark.parametrize("quantile", [0.5, 0.99, 0.999])
def test_it_is_the_percentile_of_a_binomial(machines: int, per_day: float, quantile: float) -> None:
    chances = [
        math.comb(machines, count) * per_day**count * (1.0 - per_day) ** (machines - count) for count in range(100)
    ]
    found = standbys(machines, per_day, quantile)
    assert sum(chances[: found + 1]) >= quantile > sum(chances[:found])


def test_a_large_fleet_is_no_underflow() -> None:
    # 100,000 machines, 1,000 failures a day: the mean and 2.33 standard deviations of 31.5.
    assert 1070 <= standbys(100_000, 0.01, 0.99) <= 1076


def test_new_jobs_leave_standbys_for_machines_that_train() -> None:
    planner = InventoryPlanner(Timeouts(), PoolPolicy())
    before = Inventory(nodes=fleet(training=128, free=3))
    for_new = planner.event(before, requested("new", 2), NOW)
    assert [event.available for event in for_new.events if isinstance(event, NodesAwaited)] == [1]
    for_old = planner.event(for_new.inventory, requested("old", 3, generation=4), NOW)
    assert [event.job for event in for_old.events if isinstance(event, NodesGranted)] == ["old"]


@pytest.mark.parametrize("policy", [PoolPolicy(quantile=0.0), PoolPolicy(size=1)])
def test_a_setting_overrides_it(policy: PoolPolicy) -> None:
    after = InventoryPlanner(Timeouts(), policy).event(
        Inventory(nodes=fleet(training=128, free=3)), requested("new", 2), NOW
    )
    assert any(isinstance(event, NodesGranted) for event in after.events)


def test_without_a_job_nothing_is_kept_free() -> None:
    assert reserve(fleet(training=0, free=500).values(), PoolPolicy(), NOW) == 0


def test_the_fleets_own_failures_count() -> None:
    calm = fleet(training=100, known_for=30 * DAY)
    worn = {
        name: msgspec.structs.replace(node, failures=(NOW - 40 * DAY, NOW - 3 * DAY, NOW - 2 * DAY, NOW - DAY / 2))
        for name, node in calm.items()
    }
    assert failures_per_day(calm.values(), NOW) == pytest.approx(1.2 / 3900.0)
    # Those of forty days ago and of today do not count.
    assert failures_per_day(worn.values(), NOW) == pytest.approx(201.2 / 3900.0)
    assert reserve(calm.values(), PoolPolicy(), NOW) == 1 and reserve(worn.values(), PoolPolicy(), NOW) == 11


def test_a_loss_and_the_eviction_that_follows_are_one_failure() -> None:
    planner = InventoryPlanner(Timeouts(), PoolPolicy())
    nodes = fleet(training=2)
    heard = NodeLiveness(
        last={"node-0": NOW + timedelta(seconds=59), "node-1": NOW}, listening_since=NOW - timedelta(hours=1)
    )
    lost = planner.time(Inventory(nodes=nodes), heard, NOW + timedelta(seconds=60)).inventory
    assert lost.nodes["node-1"].state is NodeState.LOST
    eviction = Eviction(
        id=uuid7(), at=NOW, source="controller", job="old", node="node-1", epoch=0, blocked_for_s=9.0, reason="test"
    )
    evicted = planner.event(lost, eviction, NOW + timedelta(seconds=61)).inventory
    assert len(evicted.nodes["node-1"].failures) == 1 and not evicted.nodes["node-0"].failures
    assert len(after_failure(evicted.nodes["node-1"].failures, NOW + 2 * DAY)) == 2
