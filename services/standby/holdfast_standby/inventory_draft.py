"""The next inventory and the events, while a decision of the standby service is worked out."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.events import Event, NodeStateChanged
from holdfast.ids import derived_id, named_id
from holdfast_standby.state import Inventory, Node, NodeState

SOURCE = "standby"

FORGOTTEN = "forgotten"
"""State reported for a node that the inventory no longer keeps."""


class InventoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """The next inventory, and events with their reasons. `refusal` or `note` answers a request."""

    inventory: Inventory
    events: tuple[Event, ...] = ()
    refusal: str = ""
    note: str = ""


class InventoryDraft:
    """A decision of the standby service under construction."""

    def __init__(self, inventory: Inventory, cause: str | None, now: datetime) -> None:
        self.nodes = dict(inventory.nodes)
        self.claims = dict(inventory.claims)
        self.cause = cause
        self.now = now
        self._events: list[Event] = []

    def emit(self, kind: type[Event], **fields: Any) -> Event:
        # Without a cause, the ids are derived from the time.
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
        self.put(node.become(state, self.now, reason, **changes), old_state=node.state)

    def put(self, node: Node, old_state: str) -> None:
        self.nodes[node.id] = node
        self.emit(
            NodeStateChanged,
            node=node.id,
            job=node.job,
            old_state=old_state,
            new_state=node.state,
            reason=node.reason,
        )

    def forget(self, node: Node, reason: str) -> None:
        del self.nodes[node.id]
        self.emit(NodeStateChanged, node=node.id, old_state=node.state, new_state=FORGOTTEN, reason=reason)

    def outcome(self) -> InventoryChange:
        return InventoryChange(
            inventory=Inventory(nodes=self.nodes, claims=self.claims),
            events=tuple(self._events),
        )
