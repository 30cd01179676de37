"""What a decision of the standby service leads to, while it is being made: the next inventory and events to say."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.events import Event, NodeStateChanged
from holdfast.ids import derived_id, named_id
from holdfast_standby.state import Inventory, Node, NodeState

SOURCE = "standby"

FORGOTTEN = "forgotten"
"""What is said to have become of a node that the inventory no longer keeps."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The next inventory and what is said; reasons stand in the events. `refusal` or `note` answers a request."""

    inventory: Inventory
    events: tuple[Event, ...] = ()
    refusal: str = ""
    note: str = ""


class Draft:
    """Collects an outcome while it is worked out."""

    def __init__(self, inventory: Inventory, cause: str | None, now: datetime) -> None:
        self.nodes = dict(inventory.nodes)
        self.claims = dict(inventory.claims)
        self.cause = cause
        self.now = now
        self._events: list[Event] = []

    def say(self, kind: type[Event], **fields: Any) -> Event:
        """Add an event."""
        # What follows from the time alone has no cause, and gets its ids from the time.
        root = self.cause or named_id(self.now, SOURCE)
        event = kind(
            id=derived_id(root, kind.__name__, nth=len(self._events)),
            at=self.now,
            source=SOURCE,
            cause=self.cause,
            **fields,
        )
        self._events.append(event)
        return event

    def move(self, node: Node, state: NodeState, reason: str, **changes: object) -> None:
        """Bring a node into its next state, and say so."""
        self.put(node.become(state, self.now, reason, **changes), old_state=node.state)

    def put(self, node: Node, old_state: str) -> None:
        """Take a node in as it is now, and say what it was."""
        self.nodes[node.id] = node
        self.say(
            NodeStateChanged,
            node=node.id,
            job=node.job,
            old_state=old_state,
            new_state=node.state,
            reason=node.reason,
        )

    def forget(self, node: Node, reason: str) -> None:
        """Keep a node no longer, and say so."""
        del self.nodes[node.id]
        self.say(NodeStateChanged, node=node.id, old_state=node.state, new_state=FORGOTTEN, reason=reason)

    def outcome(self) -> Outcome:
        """What was collected."""
        return Outcome(
            inventory=Inventory(nodes=self.nodes, claims=self.claims),
            events=tuple(self._events),
        )
