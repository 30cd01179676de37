"""The node inventory: what each node is, who may have it, and the claims that wait.

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
    """What a node is to the cluster."""

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
    """One node. `instance` is the life of its agent; `passed_instance` the last one whose self-check passed;
    `unfit` says what its last self-check found wrong, "" if that was nothing.

    `epoch` counts the times it was granted. `blocked_until` is set while it is on the blocklist.
    """

    id: str
    state: NodeState
    since: datetime
    instance: str
    facts: NodeFacts
    reason: str = ""
    epoch: int = 0
    job: str | None = None
    passed_instance: str | None = None
    unfit: str = ""
    blocked_until: datetime | None = None

    def become(self, state: NodeState, now: datetime, reason: str, **changes: object) -> Node:
        """The node in its next state.

        Raises:
            ImpossibleTransition: the table does not have it.
        """
        if state not in TRANSITIONS[self.state]:
            raise ImpossibleTransition(f"node {self.id}: {self.state} cannot become {state}")
        return msgspec.structs.replace(self, state=state, since=now, reason=reason, **changes)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A job waits for nodes. Jobs that already run go before new ones, and leave no reserve in the pool.

    `only`: these nodes and no others; such a claim waits for nobody, and nobody waits for it. `is_for_checks`: they may
    be on the blocklist. Up to `witnesses` free nodes come with them, and as many as make up `count` have to. `incident`
    is the one that it waits in: what is said of the claim belongs to that. `over_at` is when it was granted or
    withdrawn: it is then remembered for a while, so that an older one of the job that comes late is known for that.
    """

    id: str
    job: str
    count: int
    requested_at: datetime
    replaces: bool
    announced: str = ""
    over_at: datetime | None = None
    incident: str | None = None
    only: tuple[str, ...] = ()
    witnesses: int = 0
    is_for_checks: bool = False


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes, and the newest claim of each job, waiting or over."""

    nodes: dict[str, Node] = {}
    claims: dict[str, Claim] = {}


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """Whom this process has heard, and since when it can hear at all (None: it cannot now)."""

    last: dict[str, datetime] = {}
    listening_since: datetime | None = None
