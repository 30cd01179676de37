"""The store in Postgres: one schema of one service, which is its only writer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from typing import Any, NoReturn, Self

import asyncpg
import msgspec

from holdfast.bus import Message, StreamPosition
from holdfast.settings.addresses import Address
from holdfast.store import Published, S, StaleState, StoreUnavailable, Table
from holdfast.store.changes import ABSENT, Seen, change_to, row_of
from holdfast.store.connections import Connection, Connections, translated
from holdfast.store.jsonb import storable_json, storable_value
from holdfast.store.message_retention import INBOX_KEPT, OUTBOX_KEPT
from holdfast.store.sql import SchemaSql
from holdfast.store.unpublished import Unpublished
from holdfast.subjects import STREAMS

ROLLBACK_TIMEOUT_S = 2.0


Place = tuple[str, str]
"""A table's name and a key."""


class PostgresStore:
    """`holdfast.store.Store` in one Postgres schema; made by `connect`.

    Rows that were read or written stay in memory until they are deleted, since no other process writes them; their
    versions prove that at every `save` and `delete`. Of tables that are only written nothing stays.
    """

    def __init__(self, sql: SchemaSql, work: Connections, relay: Connections) -> None:
        self._sql = sql
        self._work = work
        self._relay = relay
        self._cache: dict[Place, Seen] = {}
        self._unpublished = Unpublished()

    @classmethod
    async def connect(cls, url: Address, schema: str, *, application_name: str) -> Self:
        """Prepare for use; connections are made when needed, so the database may still be down.

        `url` is postgresql://…; the tables come from the migrations, and their lack shows as NotMigrated at first use.
        """
        work = await Connections.prepare(url, application_name, most=4)
        # What the relay notes may be lost in a crash of the server: then it publishes again, which changes nothing.
        # Not waiting for the disk here leaves it to the transactions.
        relay = await Connections.prepare(url, f"{application_name}-relay", most=1, synchronous_commit="off")
        return cls(SchemaSql(schema), work, relay)

    def transaction(self) -> AbstractAsyncContextManager[PostgresTransaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[PostgresTransaction]:
        async with self._work.one() as connection:
            transaction = PostgresTransaction(self._sql, connection, self._cache, self._unpublished)
            try:
                with translated():
                    await connection.execute("begin")
                yield transaction
                with translated():
                    ended = await connection.execute("rollback" if transaction.stale else "commit")
                if ended != "COMMIT":
                    raise RuntimeError("an error of the store was swallowed inside its transaction: nothing is written")
            except BaseException:
                # A commit whose answer was lost may have happened: what it touched is not known any more.
                for place in transaction.touched:
                    self._cache.pop(place, None)
                if transaction.emitted is not None:
                    self._unpublished.failed()
                await _roll_back(connection)
                raise
            if transaction.emitted is not None:
                self._unpublished.committed(transaction.emitted)
            self._cache.update(transaction.touched)
            for place in transaction.deleted:
                if transaction.touched[place].version == ABSENT:
                    del self._cache[place]

    async def pending(self, limit: int) -> list[tuple[int, Message]]:
        if (known := self._unpublished.first(limit)) is not None:
            return known
        reading = self._unpublished.reading()
        async with self._relay.one() as connection:
            with translated():
                records = await connection.fetch(self._sql.pending, limit)
        found = [
            (position, _stored(Message(id=id_, subject=subject, body=body), headers))
            for position, id_, subject, body, headers in records
        ]
        self._unpublished.read(reading, found, limit)
        return found

    async def published(self, stored: Mapping[int, StreamPosition | None]) -> None:
        streams = [None if place is None else place.stream for place in stored.values()]
        sequences = [None if place is None else place.sequence for place in stored.values()]
        try:
            async with self._relay.one() as connection:
                with translated():
                    await connection.execute(self._sql.published, list(stored), streams, sequences)
        except BaseException:
            # Nothing is published again and again while the database is away.
            self._unpublished.changed()
            raise
        self._unpublished.published(stored)

    async def newest_published(self) -> list[Published]:
        return await self._published(self._sql.newest_published, [stream.name for stream in STREAMS])

    async def published_in(self, stream: str) -> list[Published]:
        return await self._published(self._sql.published_in, stream)

    async def _published(self, statement: str, *values: object) -> list[Published]:
        async with self._relay.one() as connection:
            with translated():
                records = await connection.fetch(statement, *values)
        return [Published(StreamPosition(stream, sequence), id_) for stream, sequence, id_ in records]

    async def publish_again(self, first: StreamPosition) -> int:
        try:
            async with self._relay.one() as connection:
                with translated():
                    done = await connection.execute(self._sql.publish_again, first.stream, first.sequence)
        finally:
            self._unpublished.changed()
        return int(done.removeprefix("UPDATE "))

    async def prune(self, now: datetime) -> None:
        async with self._work.one() as connection:
            with translated():
                await connection.execute(self._sql.prune_inbox, now - INBOX_KEPT)
                await connection.execute(self._sql.prune_outbox, now - OUTBOX_KEPT)

    async def forgotten_before(self) -> datetime | None:
        async with self._work.one() as connection:
            with translated():
                moment: datetime | None = await connection.fetchval(self._sql.forgotten_before)
        return moment

    async def close(self) -> None:
        await self._work.close()
        await self._relay.close()


class PostgresTransaction:
    """`holdfast.store.Transaction`. What it saw and wrote is in `touched`; the store adopts that after the commit."""

    def __init__(
        self, sql: SchemaSql, connection: Connection, cache: dict[Place, Seen], unpublished: Unpublished
    ) -> None:
        self.touched: dict[Place, Seen] = {}
        self.emitted: list[tuple[int, Message]] | None = None
        """Messages with their positions; None: it did not emit."""
        self.deleted: set[Place] = set()
        self.stale = False
        self._sql = sql
        self._connection = connection
        self._cache = cache
        self._unpublished = unpublished

    async def first_time(self, message_id: str, subject: str) -> bool:
        with translated():
            return await self._connection.fetchval(self._sql.first_time, message_id, subject) is not None

    async def load(self, table: Table[S], key: str) -> S | None:
        place = (table.name, key)
        seen = self._known(place)
        if seen is None:
            with translated():
                record = await self._connection.fetchrow(self._sql.load(table.name, table.changes), key)
            seen = Seen(ABSENT, None) if record is None else _seen_in(table, record)
            self.touched[place] = seen
        row: S | None = seen.row
        return row

    async def load_all(self, table: Table[S]) -> dict[str, S]:
        """Return every row, by key; always read from the database."""
        with translated():
            records = await self._connection.fetch(self._sql.load_all(table.name, table.changes))
        for place in [*self._cache, *self.touched]:
            if place[0] == table.name:
                self.touched[place] = Seen(ABSENT, None)
        rows: dict[str, S] = {}
        for record in records:
            seen = _seen_in(table, record)
            rows[record[0]] = seen.row
            self.touched[(table.name, record[0])] = seen
        return rows

    async def save(self, table: Table[S], key: str, row: S) -> None:
        place = (table.name, key)
        seen = self._known(place)
        columns = table.columns(row)
        known = None if seen is None else seen.version
        values = [storable_value(value) for value in columns.values()]
        change = change_to(seen, row) if table.changes else None
        if change is not None:
            statement = self._sql.save_change(table.name, tuple(columns), table.changes)
            body = change
        else:
            statement = self._sql.save(table.name, tuple(columns))
            body = storable_json(row)
        with translated():
            version = await self._connection.fetchval(statement, key, body, known, *values)
            if table.changes and change is None:
                await self._connection.execute(self._sql.delete_changes(table.changes), key)
        if not table.is_only_written:
            # Forgotten with the rollback that follows, if it is stale.
            self.touched[place] = (seen or Seen(ABSENT, None)).written(version or ABSENT, row, body, change is None)
        if not version:
            self._refuse(place, known)

    async def delete(self, table: Table[S], key: str) -> None:
        place = (table.name, key)
        seen = self._known(place)
        known = None if seen is None else seen.version
        with translated():
            done = await self._connection.execute(self._sql.delete(table.name), key, known)
            if table.changes:
                await self._connection.execute(self._sql.delete_changes(table.changes), key)
            is_there = known == ABSENT and await self._connection.fetchrow(self._sql.load(table.name), key) is not None
        # Forgotten with the rollback that follows, if it is stale.
        self.touched[place] = Seen(ABSENT, None)
        self.deleted.add(place)
        if is_there or (known and done == "DELETE 0"):
            self._refuse(place, known)

    async def emit(self, messages: list[Message]) -> None:
        if not messages:
            return
        if self.emitted is None:
            self.emitted = []
            self._unpublished.emitting()
        headers = [storable_json(message.headers) for message in messages]
        with translated():
            records = await self._connection.fetch(
                self._sql.emit,
                [message.id for message in messages],
                [message.subject for message in messages],
                [message.body for message in messages],
                headers,
            )
        # Positions are given in the order of the messages.
        positions = sorted(position for (position,) in records)
        self.emitted += [
            (position, _stored(message, as_json))
            for position, message, as_json in zip(positions, messages, headers, strict=True)
        ]

    def _refuse(self, place: Place, known: int | None) -> NoReturn:
        self.stale = True
        table, key = place
        raise StaleState(f"row {key!r} of {table} is not at version {known} any more: another writer was here")

    def _known(self, place: Place) -> Seen | None:
        return self.touched.get(place) or self._cache.get(place)


def _seen_in(table: Table[Any], record: Any) -> Seen:
    _, version, body, changes = record
    return Seen(version, row_of(table.row_type, body, changes or ()))


def _stored(message: Message, headers: bytes) -> Message:
    """Return the message with its headers as they were stored."""
    return msgspec.structs.replace(message, headers=msgspec.json.decode(headers, type=dict[str, str]))


async def _roll_back(connection: Connection) -> None:
    try:
        with translated():
            await connection.execute("rollback", timeout=ROLLBACK_TIMEOUT_S)
    except StoreUnavailable:
        # The server undoes what a lost connection began. A pool takes a dead connection back by itself, and then
        # refuses this call.
        with suppress(asyncpg.InterfaceError):
            connection.terminate()
