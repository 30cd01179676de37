"""ByteRobust's Table 5 and Fig. 12: the size of the warm pool, and what it saves; by the standby service."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from holdfast.events import Eviction, NodesGranted, NodesRequested
from holdfast.events.parts.job import NodeFacts
from holdfast.ids import uuid7_of
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_proving.figures.row import Figure, Row
from holdfast_standby.plan import InventoryPlanner
from holdfast_standby.sizing import USUAL_PER_DAY, standbys
from holdfast_standby.state import Inventory, Node, NodeState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
P99 = {128: 2, 256: 2, 512: 3, 1024: 4}
REQUEUE_S = {128: 454.0, 256: 545.0, 512: 635.0, 1024: 768.0}
WARM_S, RESCHEDULE_S = 67.0, 378.0
"""With 1,024 machines: a restart with standbys, and one with new machines; read off Fig. 12."""
CATASTROPHE, CATASTROPHE_SHARE = 32, 0.01
JOB = "train"


def table_5() -> Figure:
    rows = [
        Row(
            what=f"standbys of {machines} machines",
            ours=standbys(machines, USUAL_PER_DAY, PoolPolicy().quantile),
            paper=paper,
            digits=0,
            made="production",
        )
        for machines, paper in P99.items()
    ]
    return Figure(
        title="ByteRobust, Table 5: P99 of standbys",
        rows=tuple(rows),
        inputs=f"{USUAL_PER_DAY} failures of a machine and day. The paper publishes no rate; each from 0.001165 to "
        "0.00125 gives its four numbers.",
        why="None.",
    )


def is_met_at_once(machines: int, pool: int, evicted: int) -> bool:
    """Let the standby service replace machines that are evicted together; return True if its pool suffices."""
    planner = InventoryPlanner(Timeouts(), PoolPolicy())
    inventory = _inventory(machines, pool)
    for number in range(evicted):
        eviction = Eviction(
            id=_id(), at=NOW, source="figures", job=JOB, node=f"node-{number}", blocked_for_s=86400.0, reason="figure"
        )
        inventory = planner.event(inventory, eviction, NOW).inventory
    request = NodesRequested(
        id=_id(), at=NOW, source="figures", job=JOB, generation=1, count=evicted, reason="replace them"
    )
    return any(isinstance(event, NodesGranted) for event in planner.event(inventory, request, NOW).events)


def figure_12() -> Figure:
    machines = 1024
    pool = standbys(machines, USUAL_PER_DAY, PoolPolicy().quantile)
    ours_s = was_s(machines, pool)
    requeue_s = REQUEUE_S[machines]
    rows = (
        Row(what="requeue / ours", ours=requeue_s / ours_s, paper=10.87, unit="x", made="production"),
        Row(what="reschedule / ours", ours=RESCHEDULE_S / ours_s, paper=5.36, unit="x", made="production"),
        Row(
            what="ours beyond the oracle", ours=100.0 * (ours_s / WARM_S - 1.0), paper=5.19, unit="%", made="production"
        ),
    )
    return Figure(
        title="ByteRobust, Fig. 12: weighted average scheduling time (WAS) of 1,024 machines",
        rows=rows,
        inputs="Requeue takes 768 s (Table 7); with standbys 67 s and with new machines 378 s (the design's reading of "
        "Fig. 12); a switch takes 32 machines in 1 % of the cases. Which evictions the pool meets at once, the standby "
        "service decides.",
        why="Two readings of the figure. Evictions are weighted by the binomial up to the pool's size, as in 8.2.1.",
    )


def was_s(machines: int, pool: int) -> float:
    """Return the mean time to replace what is evicted together, weighted as in §8.2.1."""
    weights = list(_chances(machines, USUAL_PER_DAY, pool))
    total = sum(weights)
    mean_s = sum(
        weight / total * (WARM_S if is_met_at_once(machines, pool, evicted) else RESCHEDULE_S)
        for evicted, weight in enumerate(weights, start=1)
    )
    lost_s = WARM_S if is_met_at_once(machines, pool, CATASTROPHE) else RESCHEDULE_S
    return (1.0 - CATASTROPHE_SHARE) * mean_s + CATASTROPHE_SHARE * lost_s


def _chances(machines: int, per_day: float, most: int) -> Iterator[float]:
    """Return the binomial chances of 1 to `most` failures."""
    chance = (1.0 - per_day) ** machines
    for count in range(most):
        chance *= (machines - count) / (count + 1) * per_day / (1.0 - per_day)
        yield chance


def _inventory(machines: int, pool: int) -> Inventory:
    facts = NodeFacts(
        address="10.0.0.1", hostname="h", boot_id="b", store_ports=(1, 2), cpus=1, memory_bytes=1, version="figures"
    )

    def node(number: int) -> Node:
        is_training = number < machines
        state = NodeState.ACTIVE if is_training else NodeState.STANDBY
        job = JOB if is_training else None
        return Node(id=f"node-{number}", state=state, since=NOW, instance=_id(), facts=facts, job=job)

    return Inventory(nodes={node.id: node for node in map(node, range(machines + pool))})


def _id() -> str:
    return uuid7_of(int(NOW.timestamp() * 1000), bytes(10))
