"""The read-only connection of commands to the database, with errors that name their cure."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import asyncpg
import click
import msgspec

from holdfast.cli.connect.addresses import as_of_now
from holdfast.cli.connect.command_tls import private_url
from holdfast.network.tls import why_refused
from holdfast.store.connecting import connect

CONNECT_TIMEOUT_S = 5.0
STATEMENT_TIMEOUT_S = 30

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class DatabaseUnreachable(click.ClickException):
    """No connection to the database; the message names its address and the cause."""


@asynccontextmanager
async def reading(database_url: str) -> AsyncIterator[Connection]:
    """Open a connection that cannot write, whichever role the URL names. Raises DatabaseUnreachable, or
    ClickException for an address that would be reached in plain text.
    """
    database_url = private_url(as_of_now(database_url))
    try:
        connection = await connect(
            database_url,
            timeout=CONNECT_TIMEOUT_S,
            server_settings={
                "application_name": "holdfast-cli",
                "default_transaction_read_only": "on",
                "statement_timeout": f"{STATEMENT_TIMEOUT_S}s",
                "timezone": "UTC",
            },
        )
        await _understand_json(connection)
    except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
        raise DatabaseUnreachable(f"the database at {_address(database_url)} refuses this user: {error}") from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, TimeoutError) as error:
        cause = str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            cause = why_refused(error)
        raise DatabaseUnreachable(
            f"cannot reach the database at {_address(database_url)}: {cause}. `holdfast status` shows whether it is up"
        ) from error
    try:
        yield connection
    finally:
        connection.terminate()


async def _understand_json(connection: Connection) -> None:
    try:
        for name in ("json", "jsonb"):
            await connection.set_type_codec(
                name, schema="pg_catalog", encoder=lambda value: value, decoder=msgspec.json.decode
            )
    except BaseException:
        connection.terminate()
        raise


@asynccontextmanager
async def working(database_url: str) -> AsyncIterator[None]:
    """Turn errors on a connection into DatabaseUnreachable if it is lost, ClickException if tables are missing."""
    try:
        yield
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as error:
        raise click.ClickException(
            f"{error}: this database has no Holdfast tables of this version; `holdfast up` or `holdfast migrate` "
            "creates them"
        ) from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise DatabaseUnreachable(
            f"the connection to the database at {_address(database_url)} was lost: {error}"
        ) from error


def read(database_url: str, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Return the result of `work` on a read-only connection. Raises ClickException as `reading` and `working` do."""

    async def connected() -> T:
        async with reading(database_url) as connection, working(database_url):
            return await work(connection)

    return asyncio.run(connected())


def read_rows(database_url: str, query: str) -> list[dict[str, Any]]:
    """Return the rows of one query. Raises ClickException as `read` does."""

    async def fetch(connection: Connection) -> list[dict[str, Any]]:
        return as_dicts(await connection.fetch(query))

    return read(database_url, fetch)


def as_dicts(records: list[asyncpg.Record]) -> list[dict[str, Any]]:
    return [dict(record) for record in records]


def _address(database_url: str) -> str:
    try:
        parts = urlsplit(database_url)
        return f"{parts.hostname or 'localhost'}:{parts.port or 5432}"
    except ValueError:
        return "the given URL"
