"""State, inbox and outbox of a service in one transaction. Postgres, and memory with the same contract.

A service handles an event in these steps: begin; `first_time` (the inbox); load its state; plan; `save`; `emit` (the
outbox); commit; acknowledge. A crash at any point leaves either nothing or all of it, and a relay publishes the emitted
messages until the bus has them. So a repeated event changes nothing, and no message is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.bus import Message, StreamPosition

S = TypeVar("S", bound=msgspec.Struct)


class StoreUnavailable(Exception):
    """The store does not answer; try the whole transaction again later."""


class DatabaseReplaced(Exception):
    """The database is another one than at the start, and so is what it holds: the process must start again."""


class StaleState(Exception):
    """Another process wrote the same row since it was loaded; try the whole transaction again."""


class Table(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """A table of one service: a row is one frozen struct under a key.

    The struct is kept whole in `body` (jsonb); `columns` projects from it what people query by. The database table also
    has `key`, `version` and `updated_at`.
    """

    name: str
    row_type: type[S]
    columns: Callable[[S], dict[str, Any]]
    is_only_written: bool = False
    """A record for people: never read, so that stores remember no versions of its rows and the last writer wins."""
    changes: str = ""
    """Name of the table with the changes of rows since they were written whole, for rows of which an event changes
    little. "": each write is of a whole row."""


class Transaction(Protocol):
    """One transaction; commits when its block ends, rolls back on an exception."""

    async def first_time(self, message_id: str, subject: str) -> bool:
        """Note that this message is being handled; return False if it was handled before.

        The subject is part of the identity, for the bus proves who may publish there: anyone can copy or guess an id.
        """
        ...

    async def load(self, table: Table[S], key: str) -> S | None: ...

    async def load_all(self, table: Table[S]) -> dict[str, S]: ...

    async def save(self, table: Table[S], key: str, row: S) -> None:
        """Write the row under `key`, new or not; raises StaleState if it changed since this store last saw it."""
        ...

    async def delete(self, table: Table[S], key: str) -> None:
        """Remove the row under `key`, if it exists; raises StaleState as `save` does."""
        ...

    async def emit(self, messages: list[Message]) -> None:
        """Add messages to the outbox, in order."""
        ...


class Published(msgspec.Struct, frozen=True):
    """A message that the bus stored."""

    stored: StreamPosition
    message_id: str


class Outbox(Protocol):
    """Emitted messages, and where the bus stored those that are published; raises StoreUnavailable without a
    connection.

    Published messages that the bus is to keep stay for a while, since it may lose them.
    """

    async def pending(self, limit: int) -> list[tuple[int, Message]]:
        """Return the oldest unpublished messages with their positions, in order."""
        ...

    async def published(self, stored: Mapping[int, StreamPosition | None]) -> None:
        """Mark messages as published, by their positions here. One without a place goes: the bus need not keep it."""
        ...

    async def newest_published(self) -> list[Published]:
        """Return the newest published message of each stream."""
        ...

    async def published_in(self, stream: str) -> list[Published]:
        """Return the published messages of a stream that are still kept, the oldest first."""
        ...

    async def publish_again(self, first: StreamPosition) -> int:
        """Make the published messages from this position on pending again; return their number."""
        ...


class Store(Outbox, Protocol):
    """The store of one service."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction; commit at the end of the block.

        Raises StoreUnavailable: nothing was written, or the outcome of the commit is unknown and the inbox shows it.
        """
        ...

    async def prune(self, now: datetime) -> None:
        """Delete what the inbox and the outbox no longer need; raises StoreUnavailable without a connection.

        With a `now` that is ahead of the database's clock more is deleted, and no message that comes later counts as
        forgotten.
        """
        ...

    async def forgotten_before(self) -> datetime | None:
        """Return the time before which the inbox has forgotten messages; None: it has all. One in the future is of a
        clock that was wrong. Raises StoreUnavailable
        without a connection.
        """
        ...

    async def close(self) -> None: ...
