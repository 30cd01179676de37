"""The historian's SQL: writing rows in batches, and the partitions that they go to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import date, datetime, timedelta
from typing import Self

import asyncpg

from holdfast.settings.addresses import Address
from holdfast.store.connections import Connection, Connections, translated
from holdfast_historian.foreign_events import write
from holdfast_historian.partitions import day_of
from holdfast_historian.retraining_plan import TrainingRecord
from holdfast_historian.rows import EventRow

_PARTITIONS = """
select child.relname, pg_get_expr(child.relpartbound, child.oid) = 'DEFAULT' as is_default
from pg_inherits join pg_class child on child.oid = inhrelid
where inhparent = to_regclass('historian.events')
"""

_HAS = """
select exists (select from historian.events
               where id = $1 and at = $2 and type = $3 and node is not distinct from $4)
    or exists (select from historian.foreign_events
               where id = $1 and at = $2 and type = $3 and node is not distinct from $4)
"""

_LAST_TRAINING = """
select at, (body->>'learned_until')::timestamptz as learned_until, coalesce((body->>'is_used')::bool, false) as is_used
from historian.events where type = 'telemetry_model_trained' order by at desc limit 1
"""

_NEWEST_TELEMETRY = "select max(at) from historian.events where type = 'telemetry_measured' and at <= now()"

COMMAND_TIMEOUT_S = 60.0
"""Moving the events of a day between partitions may take this long."""

# The advisory lock serialises two historians that overlap while one replaces the other. The lock timeout keeps a
# long query from blocking a change of partitions that in turn blocks every later query.
_BEGIN_CHANGE = "set local lock_timeout = '5s'; select pg_advisory_xact_lock(hashtext('holdfast.historian.partitions'))"

# A value that cannot be stored (22), or that is too complex to be (54).
_REFUSING_CLASSES = frozenset({"22", "54"})


class RowsRefused(ValueError):
    """Postgres will never accept at least one of these rows; none of them was written."""


class HistorianStore:
    """A pool of connections as the role that writes the schema `historian`.

    Methods raise StoreUnavailable if nothing was done or the outcome is unknown: repeat the call then.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @classmethod
    async def connect(cls, database_url: Address) -> Self:
        """Prepare for use. Connections are made when needed, so the database may still be down."""
        return cls(
            await Connections.prepare(database_url, "holdfast-historian", most=3, command_timeout_s=COMMAND_TIMEOUT_S)
        )

    async def close(self) -> None:
        await self._connections.close()

    async def record(self, rows: Sequence[EventRow]) -> None:
        """Write rows in one transaction; existing ones are left alone. Raise RowsRefused if one is never valid."""
        async with self._connection() as connection, connection.transaction():
            await write(connection, [*rows])

    async def has(self, row: EventRow) -> bool:
        """Return True if this event is recorded."""
        async with self._connection() as connection:
            return bool(await connection.fetchval(_HAS, row.id, row.at, row.type, row.node))

    async def partitions(self) -> frozenset[date]:
        """Return the days that have a partition."""
        async with self._connection() as connection:
            records = await connection.fetch(_PARTITIONS)
        return frozenset(day for record in records if (day := day_of(record["relname"])) is not None)

    async def create_default_partition(self) -> None:
        """Make the partition for events with a clock that is far off, if it is missing."""
        async with self._connection() as connection, connection.transaction():
            await connection.execute(_BEGIN_CHANGE)
            if not any(record["is_default"] for record in await connection.fetch(_PARTITIONS)):
                await connection.execute("select historian.add_default_partition()")

    async def create_partition(self, day: date) -> None:
        """Make the partition of `day`, and move its events there from the default partition."""
        async with self._connection() as connection, connection.transaction():
            await connection.execute(_BEGIN_CHANGE)
            if not any(day_of(record["relname"]) == day for record in await connection.fetch(_PARTITIONS)):
                await connection.execute("select historian.add_partition($1)", day)

    async def drop_partition(self, day: date) -> None:
        """Drop the events of `day` for good."""
        async with self._connection() as connection, connection.transaction():
            await connection.execute(_BEGIN_CHANGE)
            await connection.execute("select historian.drop_partition($1)", day)

    async def prune_default_partition(self, recorded_before: datetime) -> None:
        """Drop events recorded before this moment from the default partition, where `at` means nothing."""
        async with self._connection() as connection:
            await connection.execute("delete from historian.events_default where recorded_at < $1", recorded_before)

    async def prune_foreign_events(self, recorded_before: datetime) -> None:
        """Drop what was recorded before this moment of nodes that do not belong to their job."""
        async with self._connection() as connection:
            await connection.execute("delete from historian.foreign_events where recorded_at < $1", recorded_before)

    async def prune_job_nodes(self, begun_before: datetime) -> None:
        """Forget the nodes of generations that began before this moment: their events are dropped too."""
        async with self._connection() as connection:
            await connection.execute("delete from historian.job_nodes where at < $1", begun_before)

    async def end_long_reads(self, transaction_max: timedelta, idle_max: timedelta) -> int:
        """End the reader's sessions that exceed a limit or hold an advisory lock; return their number."""
        async with self._connection() as connection:
            ended: int = await connection.fetchval("select historian.end_long_reads($1, $2)", transaction_max, idle_max)
        return ended

    async def last_training(self) -> TrainingRecord | None:
        """Return the newest try to learn a model of telemetry; None: there was none."""
        async with self._connection() as connection:
            row = await connection.fetchrow(_LAST_TRAINING)
        return TrainingRecord(**dict(row)) if row is not None else None

    async def newest_telemetry(self) -> datetime | None:
        """Return the time of the newest recorded telemetry; None: there is none."""
        async with self._connection() as connection:
            newest: datetime | None = await connection.fetchval(_NEWEST_TELEMETRY)
        return newest

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        async with self._connections.one() as connection:
            try:
                with translated():
                    yield connection
            except asyncpg.PostgresError as error:
                if str(error.sqlstate)[:2] in _REFUSING_CLASSES:
                    raise RowsRefused(str(error)) from error
                raise
            except asyncpg.InterfaceError as error:
                # The remaining ones are values that do not fit their column.
                raise RowsRefused(str(error)) from error
