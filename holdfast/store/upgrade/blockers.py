"""Sessions that hold up a change of tables and views, as any open transaction that has read them does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from holdfast.store.connecting import connect
from holdfast.store.connections import CONNECT_TIMEOUT_S
from holdfast.store.passwords import ROLE_SETTINGS

PATIENCE_S = 5.0
"""Time that queries of our own roles have to end by themselves, all together. Services and readers connect again."""
GIVES_UP_S = 60.0
"""Time that sessions of other roles have: a person's, or a backup."""
_LOOK_EVERY_S = 0.2
_ENDED_WITHIN_MS = 1000

_BLOCKERS = """
select it.pid, held.usename as role, held.application_name as program, held.client_addr as address,
    extract(epoch from now() - held.xact_start)::float8 as held_s, waiting.wait_event = 'advisory' as is_turn
from pg_stat_activity waiting cross join unnest(pg_blocking_pids(waiting.pid)) as it(pid)
left join pg_stat_activity held on held.pid = it.pid
where waiting.pid = $1
"""


class HeldUp(Exception):
    """A session of another role holds up the change; the message names it. Nothing was changed."""


@asynccontextmanager
async def unblocked(url: str, pid: int, patience_s: float) -> AsyncIterator[None]:
    """Guard what the session `pid` does in a block against sessions that hold it up.

    Sessions of our own roles are ended after `patience_s`. Raises HeldUp if another one holds it up for `GIVES_UP_S`.
    Where the same change runs twice, one waits for the other.
    """
    guard = _Guard(url, pid, patience_s)
    watching = asyncio.create_task(guard.watch())
    try:
        yield
    except Exception as error:
        if guard.gave_up:
            raise HeldUp(guard.gave_up) from error
        raise
    finally:
        watching.cancel()
        # A server that refuses or ends this connection does so to the other one, too.
        with suppress(asyncio.CancelledError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await watching


class _Guard:
    def __init__(self, url: str, pid: int, patience_s: float) -> None:
        self._url = url
        self._pid = pid
        self._patience_s = patience_s
        self._waited_s = 0.0
        self.gave_up = ""

    async def watch(self) -> None:
        connection = await connect(self._url, timeout=CONNECT_TIMEOUT_S)
        try:
            while not self.gave_up:
                await asyncio.sleep(_LOOK_EVERY_S)
                await self._look(connection)
        finally:
            connection.terminate()

    async def _look(self, connection: asyncpg.Connection[Any]) -> None:
        blockers = await connection.fetch(_BLOCKERS, self._pid)
        self._waited_s += _LOOK_EVERY_S if blockers else 0.0
        others = [it for it in blockers if it["role"] not in ROLE_SETTINGS and not it["is_turn"]]
        if self._waited_s >= self._patience_s:
            for blocker in blockers:
                if blocker["role"] in ROLE_SETTINGS:
                    await connection.execute("select pg_terminate_backend($1, $2)", blocker["pid"], _ENDED_WITHIN_MS)
        if others and self._waited_s >= GIVES_UP_S:
            self.gave_up = _words(others[0])
            await connection.execute("select pg_cancel_backend($1)", self._pid)


def _words(blocker: asyncpg.Record) -> str:
    if not blocker["pid"]:
        return (
            "a prepared transaction holds the tables: end it (select * from pg_prepared_xacts; rollback prepared ...), "
            "and try again"
        )
    whose = f"process {blocker['pid']}, a session of role {blocker['role']}"
    where = f"{blocker['program'] or 'no name'}, at {blocker['address'] or 'a socket'}"
    return (
        f"{whose} ({where}) has held the tables for {blocker['held_s'] or 0:.0f} s, in a transaction that is open. Let "
        f"it end, or end it (select pg_terminate_backend({blocker['pid']})), and try again"
    )
