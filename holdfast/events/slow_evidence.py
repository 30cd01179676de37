"""Measurements by nodes of a slow job."""

from __future__ import annotations

from holdfast.events.base import Evidence
from holdfast.events.parts.job import Endpoint
from holdfast.events.parts.samples import RankProfile, SlowStage
from holdfast.events.parts.scalars import Count, Id, Seconds


class CollectivesProfiled(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """The last iterations of the ranks of a node, found in their collectives; published by its agent."""

    asked: Id
    """Id of the slow order that it answers."""
    ranks: tuple[RankProfile, ...]
    node_rank: Count
    nnodes: Count
    nproc_per_node: Count
    mesh: str | None = None
    endpoint: Endpoint | None = None
    """Address at which the node's agent receives test transfers."""
    boot_id: str = ""
    """The machine; nodes with the same one share its processors."""


class SlownessTested(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """Measurements of a node while training was held; published by its agent.

    Matrix products come as soon as its ranks are held, transfers after these, if any were ordered.
    """

    asked: Id
    """Id of the slow order that it answers."""
    node_rank: Count
    stage: SlowStage = "hold"
    held: tuple[Count, ...] = ()
    """Ranks of the node that were held."""
    compute_s: tuple[tuple[Count, Seconds], ...] = ()
    """(rank, median seconds of a matrix product)."""
    compute_turns_s: tuple[tuple[Count, tuple[Seconds, ...]], ...] = ()
    """(rank, seconds of each matrix product)."""
    compute_waited_s: tuple[tuple[Count, tuple[Seconds, ...]], ...] = ()
    """(rank, seconds of each matrix product for which it waited for a processor that other processes used)."""
    transfers: tuple[tuple[Count, Count, Seconds], ...] = ()
    """(node rank of the sender, node rank of the receiver, seconds) of each transfer that this node sent."""
    unread: tuple[str, ...] = ()
    """Measurements that failed, and why."""
    took_s: Seconds = 0.0
    held_s: Seconds = 0.0
    """Time for which all its ranks have been held."""
