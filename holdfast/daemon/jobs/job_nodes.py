"""The nodes of each job: a service takes what nodes publish about a job from these only.

The bus proves which node has published an event, but a node may name any job and any generation in it. The decisions
that begin a generation name its nodes, and one that releases nodes which no generation had yet names those: they report
that they run no ranks. A node may publish about the generations up to the newest that it belongs to: one that has
joined keeps shards of earlier generations, one that has left knows nothing of later ones. Streams have no order with
each other, so an event may arrive before the decision that begins its generation, and long after the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec

from holdfast.bus.accounts import ACTIONS_OF_NODES
from holdfast.effects import Effect, RowWrite
from holdfast.events import (
    ChecksStarted,
    Event,
    EventClass,
    GenerationStarted,
    JobFinished,
    NodesReleased,
    ReplayStarted,
)
from holdfast.store import Table

GENERATIONS_KEPT = 50
"""Generations after which a node that has left is forgotten. Nothing follows from what it may still publish."""

FINISHED_KEPT = 200
"""Finished jobs whose nodes are known, in memory: their last events may still arrive."""

BEGINNINGS: tuple[type[Event], ...] = (GenerationStarted, ChecksStarted, ReplayStarted)
"""Decisions that begin a generation."""

NAMING: tuple[type[Event], ...] = (*BEGINNINGS, NodesReleased)
"""Decisions that name nodes of a job."""


class Membership(Enum):
    MEMBER = "member"
    """The node belongs to the generation or a later one, or the event is not about a job."""
    EARLY = "early"
    """Nothing has arrived that begins this generation."""
    STRANGER = "stranger"
    """The node belongs neither to the generation nor to a later one."""


class JobNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a job, each with the newest generation that it belongs to."""

    job: str
    generation: int
    nodes: dict[str, int]


JOB_NODES = Table(name="job_nodes", row_type=JobNodes, columns=lambda row: {"generation": row.generation})


class KnownNodes:
    """The nodes of all jobs that a service has learned of."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobNodes] = {}
        self._finished: dict[str, JobNodes] = {}

    def load(self, rows: Mapping[str, Any]) -> None:
        """Replace what is stored."""
        self._jobs = dict(rows)

    def learned(self, event: Event) -> Effect:
        """Return what a decision about a job changes in what is stored."""
        job = event.job
        if job is None:
            return Effect()
        known = self._jobs.get(job)
        if isinstance(event, JobFinished):
            return Effect(rows=(RowWrite(table=JOB_NODES, key=job, row=None),)) if known else Effect()
        if not isinstance(event, NAMING) or event.generation is None or job in self._finished:
            return Effect()
        if isinstance(event, NodesReleased) and known is None:
            # No generation has begun: the job's nodes are not known yet.
            return Effect()
        named = _with_generation(known or JobNodes(job=job, generation=0, nodes={}), event.generation, _nodes_of(event))
        return Effect(rows=(RowWrite(table=JOB_NODES, key=job, row=named),)) if named != known else Effect()

    def adopt(self, effect: Effect) -> None:
        """Take over the rows of a committed effect."""
        for row in effect.rows:
            if row.table is not JOB_NODES:
                continue
            if isinstance(row.row, JobNodes):
                self._jobs[row.key] = row.row
            elif row.key in self._jobs:
                self._finished[row.key] = self._jobs.pop(row.key)
                if len(self._finished) > FINISHED_KEPT:
                    del self._finished[next(iter(self._finished))]

    def knows(self, job: str | None) -> bool:
        """Return True if a generation of this job has begun."""
        return job in self._jobs or job in self._finished

    def membership(self, event: Event) -> Membership:
        """Return whether the node that has published `event` belongs to the generation that it names."""
        if not _is_of_node(event):
            return Membership.MEMBER
        job, generation = event.job or "", event.generation or 0
        known = self._jobs.get(job) or self._finished.get(job)
        if known is None or (generation > known.generation and job not in self._finished):
            return Membership.EARLY
        newest = known.nodes.get(event.node or "")
        return Membership.MEMBER if newest is not None and generation <= newest else Membership.STRANGER


def _with_generation(known: JobNodes, generation: int, nodes: Iterable[str]) -> JobNodes:
    """Return `known` with a generation of these nodes, which may have arrived after a later one."""
    newest = {node: max(generation, known.nodes.get(node, 0)) for node in nodes}
    last = max(generation, known.generation)
    kept = {node: of for node, of in (known.nodes | newest).items() if of > last - GENERATIONS_KEPT}
    return JobNodes(job=known.job, generation=last, nodes=kept)


def _is_of_node(event: Event) -> bool:
    """Return True for an event that only a node publishes, about a job."""
    if event.job is None or event.node is None:
        return False
    return event.event_class in (EventClass.EVIDENCE, EventClass.METRIC) or isinstance(event, ACTIONS_OF_NODES)


def _nodes_of(event: Event) -> tuple[str, ...]:
    if isinstance(event, ReplayStarted):
        return tuple(node for group in event.groups for node in group)
    assert isinstance(event, GenerationStarted | ChecksStarted | NodesReleased)
    return event.nodes
