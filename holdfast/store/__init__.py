"""Truth and its delivery: state, inbox and outbox in one transaction. Postgres, and memory with the same contract.

A service handles an event like this: begin; ask `first_time` (the inbox); load its state; plan; `save`; `say`
(the outbox); commit; acknowledge. A crash anywhere leaves either nothing or all of it, and a relay publishes
what was said until the bus has it. So an event that comes again changes nothing, and nothing said is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.bus import Message

S = TypeVar("S", bound=msgspec.Struct)


class StoreUnavailable(Exception):
    """The store does not answer; trying the whole transaction again later is right."""


class StaleState(Exception):
    """Somebody else wrote the same row since it was loaded; try the whole transaction again."""


class Table(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """A table of one service: a row is one frozen struct under a key.

    The struct is kept whole in `body` (jsonb); `columns` projects from it what people query by. The database
    table has the columns `key`, `version`, `body`, `updated_at` and the projected ones.
    """

    name: str
    row_type: type[S]
    columns: Callable[[S], dict[str, Any]]
    is_only_written: bool = False
    """A record for people: never read, so that stores remember no versions of its rows and the last writer wins."""


class Transaction(Protocol):
    """One transaction; commits when its block ends, rolls back on an exception."""

    async def first_time(self, message_id: str) -> bool:
        """Note that this message is being handled; False when it was handled before."""
        ...

    async def load(self, table: Table[S], key: str) -> S | None:
        """The row under `key`."""
        ...

    async def load_all(self, table: Table[S]) -> dict[str, S]:
        """Every row, by key."""
        ...

    async def save(self, table: Table[S], key: str, row: S) -> None:
        """Write the row under `key`, new or not.

        Raises:
            StaleState: it was changed by another writer since this store last saw it.
        """
        ...

    async def delete(self, table: Table[S], key: str) -> None:
        """Remove the row under `key`, if there.

        Raises:
            StaleState: as in `save`.
        """
        ...

    async def emit(self, messages: list[Message]) -> None:
        """Add to the outbox, in order."""
        ...


class Outbox(Protocol):
    """Messages said and not yet known to be published."""

    async def pending(self, limit: int) -> list[tuple[int, Message]]:
        """The oldest unpublished messages with their positions, in order."""
        ...

    async def published(self, positions: list[int]) -> None:
        """These are stored by the bus."""
        ...


class Store(Outbox, Protocol):
    """One service's part of the truth."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Begin; commit at the end of the block.

        Raises:
            StoreUnavailable: no connection; nothing was written, or the commit's fate is unknown: the inbox tells.
        """
        ...

    async def prune(self, now: datetime) -> None:
        """Forget what the inbox and the outbox no longer need.

        Raises:
            StoreUnavailable: no connection.
        """
        ...

    async def close(self) -> None:
        """Give up the connections."""
        ...
