"""Connections to Postgres for one service, and what their failures mean."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Self, cast

import asyncpg

from holdfast.network.tls import why_refused
from holdfast.settings.addresses import Address, current
from holdfast.store import DatabaseReplaced, StoreUnavailable
from holdfast.store.connecting import connect

CONNECT_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 15.0
CLOSE_TIMEOUT_S = 3.0
_NEVER = 1_000_000_000
_IDENTITY = """
select system_identifier, timeline_id, oid from pg_control_system(), pg_control_checkpoint(), pg_database
where datname = current_database()
"""
"""Each server has an identifier, and begins a new timeline where it goes back or a replica takes its place; the numbers
of its databases are the same on every server.
"""

# SQLSTATE classes of what may pass: connections (08), rolled back in favour of others (40), resources (53), objects
# in use (55), shutdown, start-up and cancellation (57), the system around the server (58).
_PASSING_CLASSES = frozenset({"08", "40", "53", "55", "57", "58"})
# Not migrated yet: no such role or password (28), database (3D), schema (3F), table or permission (42).
_SETUP_CLASSES = frozenset({"28", "3D", "3F", "42"})


class NotMigrated(Exception):
    """The database lacks this service's role, schema or tables, or they are of another version."""


Connection = asyncpg.pool.PoolConnectionProxy


class Connections:
    """A small pool; broken connections are replaced when the next one is asked for."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    @classmethod
    async def prepare(
        cls,
        url: Address,
        application_name: str,
        *,
        most: int,
        command_timeout_s: float = COMMAND_TIMEOUT_S,
        **settings: str,
    ) -> Self:
        """Prepare up to `most` connections; none is made yet. `settings` are server settings of the session."""

        preparation = _Preparation()

        async def connected(_: str, **options: Any) -> Any:
            try:
                return await connect(current(url), **options)
            except asyncpg.InvalidAuthorizationSpecificationError as error:
                if preparation.database is None:
                    raise
                # It was let in before: its password is being renewed.
                raise StoreUnavailable(_words(error)) from error

        pool = await asyncpg.create_pool(
            current(url),
            connect=cast(Any, connected),
            min_size=0,
            max_size=most,
            max_queries=_NEVER,
            max_inactive_connection_lifetime=0,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=command_timeout_s,
            init=preparation,
            # No session state is ever changed here, and undoing none costs a round trip for every transaction.
            reset=_leave_as_is,
            server_settings={"application_name": application_name, "timezone": "UTC", **settings},
        )
        return cls(pool)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        """Yield a connection. Only taking it and giving it back is translated, not what the block raises.

        Raises StoreUnavailable if none can be had now, NotMigrated if the database does not let this service in.
        """
        with translated():
            connection = await self._pool.acquire(timeout=CONNECT_TIMEOUT_S)
        try:
            yield connection
        except StoreUnavailable:
            # Whatever state it is in, the next one is better. Where the pool noticed by itself it refuses this call.
            with suppress(asyncpg.InterfaceError):
                connection.terminate()
            raise
        finally:
            with translated():
                await self._pool.release(connection, timeout=CONNECT_TIMEOUT_S)

    async def close(self) -> None:
        """Give up the connections, waiting a moment for those in use."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()


@contextmanager
def translated() -> Iterator[None]:
    """Turn what asyncpg raises into what the store's contract names; anything else is a defect and passes."""
    try:
        yield
    except asyncpg.PostgresError as error:
        sqlstate_class = str(error.sqlstate or "08")[:2]
        # A restore has just put another database in its place.
        was_renamed = isinstance(error, asyncpg.InvalidCatalogNameError) and "renamed" in str(error.detail)
        if sqlstate_class in _PASSING_CLASSES or was_renamed:
            raise StoreUnavailable(_words(error)) from error
        if sqlstate_class in _SETUP_CLASSES:
            raise NotMigrated(f"{_words(error)}: run `holdfast migrate` against this database first") from error
        raise
    except asyncpg.InterfaceError as error:
        if isinstance(error, ValueError):
            raise  # a value that does not fit its column
        raise StoreUnavailable(_words(error)) from error
    except (OSError, TimeoutError, asyncpg.InternalClientError) as error:
        # asyncpg's internal error: a server that stops reports it unasked, and asyncpg loses count of the conversation.
        raise StoreUnavailable(_words(error)) from error


def _words(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"Postgres is refused: {why_refused(error)}"
    return f"Postgres: {type(error).__name__}: {error}" if str(error) else f"Postgres: {type(error).__name__}"


class _Preparation:
    """Prepares each new connection of a pool. Raises DatabaseReplaced if it leads to another database than the first.

    `holdfast restore` puts another database in the place of the present one, and an operator puts another server in the
    place of a lost one. What a process read before holds no more.
    """

    def __init__(self) -> None:
        self.database: asyncpg.Record | None = None
        """The first one; None until a connection was made."""

    async def __call__(self, connection: asyncpg.Connection[Any]) -> None:
        # jsonb's binary form is a version byte and the text, so that msgspec's bytes go in and out as they are.
        await connection.set_type_codec(
            "jsonb",
            schema="pg_catalog",
            format="binary",
            encoder=lambda body: b"\x01" + body,
            decoder=lambda body: bytes(body[1:]),
        )
        database = await connection.fetchrow(_IDENTITY)
        if self.database not in (None, database):
            raise DatabaseReplaced("the database was replaced by another one: this process starts again to read it")
        self.database = database


async def _leave_as_is(connection: asyncpg.Connection[Any]) -> None:
    return
