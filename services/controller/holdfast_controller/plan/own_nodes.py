"""Tells events of a job's own nodes from those of other nodes: a node may name any job in what it publishes.

The rule is that of `holdfast.daemon.jobs.job_nodes`, by the state of the job: a node that has left may still publish
about the generations that it was part of.
"""

from __future__ import annotations

from holdfast.daemon.jobs.job_nodes import GENERATIONS_KEPT
from holdfast.events import AnyEvent, Evidence, NodeDeparted, OrderRefused, RanksFinished, RanksStarted, RanksStopped
from holdfast_controller.plan.job import JobState

_OF_NODES = (Evidence, RanksStarted, RanksStopped, RanksFinished)

# A node that departs may not have been granted yet. A restored database may not know the nodes that refuse its orders.
_OF_ANY_NODE = (NodeDeparted, OrderRefused)


def is_foreign(state: JobState, event: AnyEvent) -> bool:
    """Return True for an event of a node that the job does not have, and did not have in that generation."""
    if event.job is None or event.node is None or not isinstance(event, _OF_NODES):
        return False
    if isinstance(event, _OF_ANY_NODE) or event.node in state.nodes:
        return False
    return (event.generation or 0) > state.left.get(event.node, -1)


def with_left(state: JobState, before: JobState) -> JobState:
    """Return `state` with the nodes that have left since `before`."""
    if state.members is before.members:
        return state
    gone = {node: before.generation for node in before.nodes if node not in state.nodes}
    if not gone:
        return state
    kept = {node: of for node, of in state.left.items() if of > state.generation - GENERATIONS_KEPT}
    return state.update(left=kept | gone)
