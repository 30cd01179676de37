"""Admits events to a service: those that a job's own nodes publish about it, once their generation has begun."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import structlog

from holdfast.bus import Delivery
from holdfast.daemon.jobs.early_events import EarlyEvent, EarlyEvents
from holdfast.daemon.jobs.job_nodes import BEGINNINGS, JOB_NODES, NAMING, KnownNodes, Membership
from holdfast.effects import Effect
from holdfast.events import AnyEvent, Event, JobFinished
from holdfast.store import Table

NAMED_MAX = 1000
"""Most pairs of node and job that this process logs a line about."""

log = structlog.get_logger()


class Admission:
    def __init__(self, knows_nodes: bool) -> None:
        """`knows_nodes`: False for a service that takes everything."""
        self.tables: tuple[Table[Any], ...] = (JOB_NODES,) if knows_nodes else ()
        self.learns_from: tuple[type[Event], ...] = (*NAMING, JobFinished) if knows_nodes else ()
        self._nodes = KnownNodes()
        self._early = EarlyEvents()
        self._named: set[tuple[str | None, str | None]] = set()

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace what is stored about jobs' nodes: table name -> key -> row."""
        self._nodes.load(rows.get(JOB_NODES.name, {}))

    def learned(self, event: AnyEvent) -> Effect:
        """Return what an event changes in what is stored about jobs' nodes."""
        return self._nodes.learned(event) if isinstance(event, self.learns_from) else Effect()

    def adopt(self, effect: Effect) -> None:
        """Take over the rows of a committed effect."""
        self._nodes.adopt(effect)

    def admits(self, event: AnyEvent, delivery: Delivery, now: datetime) -> bool:
        """Return False for an event that is ignored, or that waits for its generation."""
        membership = self._nodes.membership(event) if self.tables else Membership.MEMBER
        if membership is Membership.EARLY:
            for late in self._early.give_up(now):
                self._name(late.event)
            if self._early.keep(event, delivery, now):
                return False
        if membership is not Membership.MEMBER:
            self._name(event)
        return membership is Membership.MEMBER

    def released(self, event: AnyEvent) -> list[EarlyEvent]:
        """Return the events that have waited for `event`, a decision that was committed."""
        if not isinstance(event, BEGINNINGS) or event.job is None:
            return []
        return [held for held in self._early.take(event.job) if self.admits(held.event, held.delivery, held.at)]

    def _name(self, event: AnyEvent) -> None:
        place = (event.node, event.job)
        if place not in self._named and len(self._named) < NAMED_MAX:
            self._named.add(place)
            log.warning(
                "events of a node that does not belong to the job are ignored",
                node=event.node,
                job=event.job,
                generation=event.generation,
                type=event.type,
            )
