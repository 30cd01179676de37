"""Traces of a job's processes. The analyzer writes it, the agents of the job's nodes answer."""

from __future__ import annotations

from holdfast.events.parts.scalars import Count, Id, Moment, Name
from holdfast.orders.base import Order


class TraceOrder(Order, frozen=True, kw_only=True, omit_defaults=True):
    """A trace of the ranks of one generation on all nodes of the job, once for each `id`."""

    kind = "trace"
    writer = "analyzer"
    addressee = "job"

    id: Id
    job: Name
    generation: Count
    until: Moment
    """After this time the order is ignored: the analyzer no longer waits for answers."""
    native: bool = False
    """Also read frames of compiled code, which pauses each process for a while."""

    @property
    def message_id(self) -> str:
        """Id by which the bus drops a second copy: key and id."""
        return f"{self.key}-{self.id}"
