"""One connection to a cluster's database for all that a test asks: a new one each time costs more than the answers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import asyncpg
from waiting import NotYet

BROKEN = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # of a server that says unasked that it ends
)


class Reader:
    """Asks, and connects anew when the database has been away."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._connection: asyncpg.Connection | None = None
        self._url = ""

    def rows(self, url: str, sql: str, arguments: tuple[object, ...]) -> list[dict[str, Any]]:
        """The answer. Raises NotYet while the database is away."""
        known = self._connection is not None
        try:
            return self._runner.run(self._rows(url, sql, arguments))
        except BROKEN as error:
            self._forget()
            if known:
                # The connection may have broken long ago.
                return self.rows(url, sql, arguments)
            raise NotYet(f"the database is away: {error!r}") from error

    def close(self) -> None:
        """Ask nothing more."""
        self._forget()
        self._runner.close()

    async def _rows(self, url: str, sql: str, arguments: tuple[object, ...]) -> list[dict[str, Any]]:
        if self._connection is None or self._url != url:
            self._connection, self._url = await asyncpg.connect(url, timeout=5), url
        return [dict(row) for row in await self._connection.fetch(sql, *arguments, timeout=30)]

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*BROKEN):
                self._runner.run(_end(connection))


async def _end(connection: asyncpg.Connection) -> None:
    """Within the loop, which is needed for that."""
    connection.terminate()
