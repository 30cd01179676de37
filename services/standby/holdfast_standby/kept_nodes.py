"""Nodes kept for a job that waits for the steps in their memory: another job would clear it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from holdfast.events import IncidentClosed, Suspension
from holdfast_standby.inventory_draft import InventoryDraft
from holdfast_standby.state import Claim, Node

AFTER_PAUSE = timedelta(minutes=10)
"""A node may come back at the end of the pause: then the job still has to start and to fetch its steps. The end of its
incident comes long before; this is for an end that never arrives."""


def begin(draft: InventoryDraft, event: Suspension) -> None:
    """Keep the nodes that the job waits for."""
    until = event.at + timedelta(seconds=event.pause_s) + AFTER_PAUSE
    for name in event.keeps:
        if node := draft.nodes.get(name):
            draft.nodes[name] = msgspec.structs.replace(node, kept_for=event.job, kept_until=until)


def end(draft: InventoryDraft, event: IncidentClosed) -> None:
    """Keep nothing for a job that goes on, or is over."""
    _let_go(draft, [node for node in draft.nodes.values() if node.kept_for and node.kept_for == event.job])


def end_outdated(draft: InventoryDraft) -> None:
    _let_go(draft, [node for node in draft.nodes.values() if node.kept_until and node.kept_until <= draft.now])


def is_free_for(node: Node, claim: Claim) -> bool:
    """Return True unless the node is kept for another job."""
    return node.kept_for in (None, claim.job)


def _let_go(draft: InventoryDraft, nodes: Iterable[Node]) -> None:
    for node in nodes:
        draft.nodes[node.id] = msgspec.structs.replace(node, kept_for=None, kept_until=None)
