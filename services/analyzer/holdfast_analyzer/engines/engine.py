"""The protocol of an engine: one kind of conclusion that the analyzer draws from events.

The service knows no engine by name. It gives each event to the engines that declare its type, asks all of them what
the time makes due, and gives every effect to all of them once it is committed. Until then an engine must stay able to
return the same effect again: a commit may fail, and its event is then delivered again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.effects import Effect, RowWrite
from holdfast.events import AnyEvent, Event
from holdfast.requests import AnyRequest, Request
from holdfast.store import Table


class Engine(ABC):
    """One engine with the state of all jobs that run. It touches nothing but this state."""

    events: tuple[type[Event], ...]
    """The types of event that it takes."""

    requests: tuple[type[Request], ...] = ()
    """The requests that it answers; no other engine answers them."""

    tables: tuple[Table[Any], ...] = ()
    """The tables that it alone writes."""

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:  # noqa: B027 - most engines store nothing
        """Replace the stored part of the state: table name -> key -> row."""

    @abstractmethod
    def take(self, job: str, event: AnyEvent, now: datetime) -> Effect:
        """Take in an event of a running job and return the effect that follows at once."""

    def due(self, now: datetime, hearing_since: datetime | None) -> Effect:
        """Return what the time makes due; called every half second.

        `hearing_since`: the bus has been received without a gap since then; None: it is not received now.
        """
        return Effect()

    def answer(self, request: AnyRequest, now: datetime) -> Effect:
        raise NotImplementedError

    def committed(self, effect: Effect) -> None:  # noqa: B027 - an engine may take all from its events
        """Adopt a committed effect: its own, and what follows from those of other engines."""

    @abstractmethod
    def forget(self, job: str) -> tuple[RowWrite, ...]:
        """Drop the state of a job that is over, and return the rows to delete."""
