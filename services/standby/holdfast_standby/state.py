"""The node inventory: the state of each node, the job that has it, and the claims that wait.

registered ──self-check passed──▶ checked ──warm and waiting──▶ standby ──granted──▶ active
    ▲                                                             ▲                    │
    │                                                             └──released by job───┤
    ├──agent came back── lost ◀──silent, or shut down── (any of them)                  │
    │                      └──long ago, and not on the blocklist──▶ forgotten          │
    └──block over, or released by hand── evicted ◀──the job's controller evicts it─────┤
                                            └──granted for checks, and back ───────────┘
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from holdfast.events.parts.job import NodeFacts


class NodeState(StrEnum):
    """The state of a node in the inventory. `CHECKED`: its own inspections passed; `STANDBY`: free and warm; `ACTIVE`:
    held by a job; `EVICTED`: on the blocklist."""

    REGISTERED = "registered"
    CHECKED = "checked"
    STANDBY = "standby"
    ACTIVE = "active"
    EVICTED = "evicted"
    LOST = "lost"


TRANSITIONS: dict[NodeState, frozenset[NodeState]] = {
    NodeState.REGISTERED: frozenset({NodeState.CHECKED, NodeState.LOST, NodeState.EVICTED}),
    NodeState.CHECKED: frozenset({NodeState.STANDBY, NodeState.LOST, NodeState.EVICTED, NodeState.REGISTERED}),
    NodeState.STANDBY: frozenset({NodeState.ACTIVE, NodeState.LOST, NodeState.EVICTED, NodeState.REGISTERED}),
    NodeState.ACTIVE: frozenset({NodeState.STANDBY, NodeState.LOST, NodeState.EVICTED, NodeState.REGISTERED}),
    NodeState.EVICTED: frozenset({NodeState.REGISTERED, NodeState.LOST, NodeState.ACTIVE}),
    NodeState.LOST: frozenset({NodeState.REGISTERED, NodeState.EVICTED}),
}

WATCHED = frozenset({NodeState.REGISTERED, NodeState.CHECKED, NodeState.STANDBY, NodeState.ACTIVE})
"""States in which a node's silence means that it is lost."""


class ImpossibleTransition(AssertionError):
    """A transition that the table does not have; a defect of this service, never of its input."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the inventory."""

    id: str
    state: NodeState
    since: datetime
    instance: str
    """UUIDv7 of this start of its agent."""
    facts: NodeFacts
    reason: str = ""
    epoch: int = 0
    """Number of grants so far."""
    job: str | None = None
    passed_instance: str | None = None
    """The last instance whose self-check passed."""
    departed: str | None = None
    """The last instance that was shut down."""
    unfit: str = ""
    """Failures of its last self-check."""
    kept_for: str | None = None
    """The job that waits for the steps in its memory: no other job gets it."""
    kept_until: datetime | None = None
    blocked_until: datetime | None = None
    """Set while it is on the blocklist."""
    known_since: datetime | None = None
    """Its first registration; None: before the inventory kept it, or as long as its present state."""
    failures: tuple[datetime, ...] = ()
    """Times of the node's evictions and losses, one for each day, oldest first."""

    @property
    def has_departed(self) -> bool:
        """True if its agent was shut down, and no later start of it has registered."""
        return self.departed == self.instance

    def become(self, state: NodeState, now: datetime, reason: str, **changes: object) -> Node:
        """Return the node in its next state; raise ImpossibleTransition if the table does not have it."""
        if state not in TRANSITIONS[self.state]:
            raise ImpossibleTransition(f"node {self.id}: {self.state} cannot become {state}")
        return msgspec.structs.replace(self, state=state, since=now, reason=reason, **changes)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The claim of a job for nodes. Jobs that already run go before new ones, and leave no reserve in the pool."""

    id: str
    job: str
    count: int
    enough: int | None = None
    """Number of nodes that it waits for; None: `count`."""
    at_least: int | None = None
    """Number of nodes that it takes once they have been free for `last_call_s`; None: it waits for `enough`."""
    last_call_s: float = 0.0
    last_call_at: datetime | None = None
    """Time since which at least `at_least` nodes have been free."""
    requested_at: datetime
    replaces: bool
    announced: str = ""
    over_at: datetime | None = None
    """When it was granted or withdrawn. It is kept for a while, so that an older claim that arrives late is ignored."""
    incident: str | None = None
    """The incident that the events of the claim belong to."""
    only: tuple[str, ...] = ()
    """The named nodes and no others. Such a claim neither waits for other claims nor blocks them."""
    witnesses: int = 0
    """Most free nodes that come with the named ones; as many as make up `count` are required."""
    avoid: tuple[str, ...] = ()
    """Nodes that it gets only if no others are free, the worst first. The job's controller knows their records."""
    avoid_racks: tuple[str, ...] = ()
    """Racks from which it gets nodes only if no others are free, the worst first."""
    trains_on: bool = False
    """The job trains without them."""
    is_for_checks: bool = False
    """The named nodes may be on the blocklist."""

    @property
    def fewest(self) -> int:
        """The number of free nodes without which it gets none."""
        return min(self.count if it is None else it for it in (self.enough, self.at_least))

    @property
    def waits_for(self) -> int:
        """The number of nodes to name to people: what it may have beside these is no reason to wait."""
        return self.count if self.at_least is None else max(1, self.fewest)


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes, and the newest claim of each job, waiting or over."""

    nodes: dict[str, Node] = {}
    claims: dict[str, Claim] = {}


class NodeLiveness(msgspec.Struct, frozen=True, kw_only=True):
    """The last heartbeat of each node that this process has received."""

    last: dict[str, datetime] = {}
    listening_since: datetime | None = None
    """Start of the present connection; None: heartbeats cannot arrive now."""
    only: dict[str, tuple[str, datetime]] = {}
    """For each node the instance that sent its last heartbeats, and since when no other one has sent any."""
