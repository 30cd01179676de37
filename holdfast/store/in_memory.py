"""The store in memory, for tests and simulation: the contract of Postgres, and the ways in which it fails."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime

import msgspec

from holdfast.bus import Message, StreamPosition
from holdfast.clock import Now, system_now
from holdfast.growing import to_json
from holdfast.store import Published, S, StaleState, StoreUnavailable, Table
from holdfast.store.changes import ABSENT, Seen, change_to, row_of
from holdfast.store.message_retention import INBOX_KEPT, OUTBOX_KEPT


class _Row(msgspec.Struct, frozen=True):
    version: int
    body: bytes
    """The row as it was last written whole."""
    changes: tuple[bytes, ...] = ()
    """Changes since then, the oldest first."""


class _PublishedRow(msgspec.Struct, frozen=True):
    message: Message
    at: datetime
    stored: StreamPosition


class MemoryDatabase:
    """State that survives a crash of the service: pass it to the next store."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], _Row] = {}
        self.inbox: dict[tuple[str, str], datetime] = {}
        self.forgotten_before: datetime | None = None
        self.unpublished: dict[int, Message] = {}
        self.published: dict[int, _PublishedRow] = {}
        self.newest: dict[str, Published] | None = {}
        """The newest published row of each stream; None: rows were taken away since it was known."""
        self.positions = itertools.count(1)
        self.lock = asyncio.Lock()

    def note_published(self, position: int, row: _PublishedRow) -> None:
        self.published[position] = row
        if self.newest is not None:
            _keep_newest(self.newest, row)


def _keep_newest(newest: dict[str, Published], row: _PublishedRow) -> None:
    place = row.stored
    known = newest.get(place.stream)
    if known is None or place.sequence >= known.stored.sequence:
        newest[place.stream] = Published(place, row.message.id)


class MemoryStore:
    """`holdfast.store.Store` in memory. Transactions run one at a time, so they are isolated.

    `available = False` is a server that does not answer; `lose_next_commit` makes the next commit's fate unknown to its
    caller: it is written, and StoreUnavailable is raised.
    """

    def __init__(self, database: MemoryDatabase | None = None, *, now: Now = system_now) -> None:
        self.database = MemoryDatabase() if database is None else database
        self.available = True
        self.lose_next_commit = False
        self.written_bytes = 0
        """Size of all rows and changes that were saved."""
        self._now = now
        self._seen: dict[tuple[str, str], Seen] = {}

    def transaction(self) -> AbstractAsyncContextManager[MemoryTransaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[MemoryTransaction]:
        async with self.database.lock:
            self._require_available()
            transaction = MemoryTransaction(self)
            try:
                yield transaction
                self._require_available()
            except BaseException:
                transaction.forget()
                raise
            transaction.commit(self._now())
            if self.lose_next_commit:
                self.lose_next_commit = False
                transaction.forget()
                raise StoreUnavailable("the connection was lost during the commit; nobody knows whether it took place")

    async def pending(self, limit: int) -> list[tuple[int, Message]]:
        self._require_available()
        return list(itertools.islice(self.database.unpublished.items(), limit))

    async def published(self, stored: Mapping[int, StreamPosition | None]) -> None:
        self._require_available()
        now = self._now()
        for position, place in stored.items():
            message = self.database.unpublished.pop(position, None)
            if message is not None and place is not None:
                self.database.note_published(position, _PublishedRow(message, now, place))

    async def newest_published(self) -> list[Published]:
        newest = self.database.newest
        if newest is None:
            newest = self.database.newest = {}
            for row in self.database.published.values():
                _keep_newest(newest, row)
        return [newest[stream] for stream in sorted(newest)]

    async def published_in(self, stream: str) -> list[Published]:
        self._require_available()
        rows = self.database.published.values()
        found = [Published(it.stored, it.message.id) for it in rows if it.stored.stream == stream]
        return sorted(found, key=lambda it: it.stored.sequence)

    async def publish_again(self, first: StreamPosition) -> int:
        self._require_available()
        database = self.database
        lost = {
            position: row.message
            for position, row in database.published.items()
            if row.stored.stream == first.stream and row.stored.sequence >= first.sequence
        }
        for position in lost:
            del database.published[position]
        database.newest = None
        database.unpublished = dict(sorted((database.unpublished | lost).items()))
        return len(lost)

    async def prune(self, now: datetime) -> None:
        self._require_available()
        database = self.database
        before, present, clock = now - INBOX_KEPT, database.forgotten_before, self._now()
        gone = [at for at in database.inbox.values() if at < before]
        until = before if before <= clock else max(gone, default=None)
        if until is not None:
            is_sound = present is not None and present <= clock
            database.forgotten_before = max(present, until) if present is not None and is_sound else until
        database.inbox = {key: at for key, at in database.inbox.items() if at >= before}
        database.published = {
            position: row for position, row in database.published.items() if row.at >= now - OUTBOX_KEPT
        }
        database.newest = None

    async def forgotten_before(self) -> datetime | None:
        self._require_available()
        return self.database.forgotten_before

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def seen(self, place: tuple[str, str]) -> Seen | None:
        """Return what this store last read or wrote under `place`; None if it never did."""
        return self._seen.get(place)

    def note_seen(self, place: tuple[str, str], seen: Seen | None) -> None:
        """Remember it, or with None forget it."""
        if seen is None:
            self._seen.pop(place, None)
        else:
            self._seen[place] = seen

    def _require_available(self) -> None:
        if not self.available:
            raise StoreUnavailable("the store in memory is set to be unavailable")


class MemoryTransaction:
    """A `holdfast.store.Transaction` of a `MemoryStore`: nothing is changed before its commit."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._database = store.database
        self._handled: list[tuple[str, str]] = []
        self._emitted: list[Message] = []
        self._written: dict[tuple[str, str], _Row | None] = {}
        self._seen: dict[tuple[str, str], Seen] = {}
        self._deleted: set[tuple[str, str]] = set()

    async def first_time(self, message_id: str, subject: str) -> bool:
        key = (message_id, subject)
        if key in self._database.inbox or key in self._handled:
            return False
        self._handled.append(key)
        return True

    async def load(self, table: Table[S], key: str) -> S | None:
        place = (table.name, key)
        row = self._written[place] if place in self._written else self._database.rows.get(place)
        if row is None:
            self._seen.setdefault(place, Seen(ABSENT, None))
            return None
        decoded = row_of(table.row_type, row.body, row.changes)
        self._seen[place] = Seen(row.version, decoded)
        return decoded

    async def load_all(self, table: Table[S]) -> dict[str, S]:
        places = {place for place in (*self._database.rows, *self._written) if place[0] == table.name}
        rows = {key: await self.load(table, key) for _, key in sorted(places)}
        return {key: row for key, row in rows.items() if row is not None}

    async def save(self, table: Table[S], key: str, row: S) -> None:
        place = (table.name, key)
        present = self._require_current(place)
        version = present.version + 1 if present else 1
        table.columns(row)
        seen = self._seen.get(place, self._store.seen(place))
        change = change_to(seen, row) if table.changes else None
        if change is not None and present is not None:
            body = change
            self._written[place] = _Row(version, present.body, (*present.changes, change))
        else:
            body = msgspec.json.encode(row, enc_hook=to_json)
            self._written[place] = _Row(version, body)
        self._store.written_bytes += len(body)
        if not table.is_only_written:
            self._seen[place] = (seen or Seen(ABSENT, None)).written(version, row, body, change is None)

    async def delete(self, table: Table[S], key: str) -> None:
        place = (table.name, key)
        self._require_current(place)
        self._written[place] = None
        self._seen[place] = Seen(ABSENT, None)
        self._deleted.add(place)

    def _require_current(self, place: tuple[str, str]) -> _Row | None:
        known = self._seen.get(place, self._store.seen(place))
        present = self._written[place] if place in self._written else self._database.rows.get(place)
        version = ABSENT if present is None else present.version
        if known is not None and known.version != version:
            self._store.note_seen(place, None)
            raise StaleState(f"row {place[1]!r} of {place[0]} is at version {version}, not {known.version}")
        return present

    async def emit(self, messages: list[Message]) -> None:
        self._emitted.extend(messages)

    def commit(self, now: datetime) -> None:
        database = self._database
        database.inbox.update((key, now) for key in self._handled)
        for message in self._emitted:
            database.unpublished[next(database.positions)] = message
        for place, row in self._written.items():
            if row is None:
                database.rows.pop(place, None)
            else:
                database.rows[place] = row
        for place, seen in self._seen.items():
            self._store.note_seen(place, None if seen.version == ABSENT and place in self._deleted else seen)

    def forget(self) -> None:
        """Forget the versions of rows in a transaction that was rolled back or may have been."""
        for place in self._seen:
            self._store.note_seen(place, None)
