"""The passwords of the database's roles, renewed while the roles are in use.

Postgres lets each role change its own password and settings. So a session with a stolen password can hold the row of
its role, change it again and again, or leave settings there for the sessions of others.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from holdfast.store.connecting import connect
from holdfast.store.connections import COMMAND_TIMEOUT_S, CONNECT_TIMEOUT_S, translated

_OPEN = "select format('alter role %I with login password %L', $1::text, $2::text)"
_CLOSE = "select format('alter role %I with nologin', $1::text)"
_RESET = "select format('alter role %I reset all', $1::text)"
_RESET_HERE = "select format('alter role %I in database %I reset all', $1::text, current_database())"
_SETTING = "select format('alter role %I set %I = %L', $1::text, $2::text, $3::text)"
_END_SESSIONS = """
select count(pg_terminate_backend(pid, $2)) from pg_stat_activity
where usename = any($1::text[]) and backend_type = 'client backend' and pid <> pg_backend_pid()
"""
_ENDED_WITHIN_MS = 1000
_LOCK_WITHIN = "set local lock_timeout = '200ms'"
_WITHIN_S = 10.0
"""Longest attempt to change a role that its own sessions change meanwhile."""
_NO_JIT = {"jit": "off"}
ROLE_SETTINGS: dict[str, dict[str, str]] = {
    **{f"holdfast_{it}": _NO_JIT for it in ("controller", "analyzer", "standby", "ckpt", "historian")},
    "holdfast_reader": {
        **_NO_JIT,
        "default_transaction_read_only": "on",
        "statement_timeout": "30s",
        "idle_in_transaction_session_timeout": "60s",
        "idle_session_timeout": "10min",
        "temp_file_limit": "4GB",
    },
}
"""The settings of each role, as the migrations leave them."""


_ITERATIONS = 4096
"""Iterations of SCRAM, Postgres' own default; more would protect nothing, since our passwords are random."""


def verifier(password: str) -> str:
    """Return what Postgres keeps in place of a password (SCRAM-SHA-256). In a statement it opens nothing, and a server
    may log its statements, above all those that fail.
    """
    if not password.isascii():
        return password  # Postgres normalizes other characters before it hashes them.
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    salt_text, stored_text, server_text = (b64encode(it).decode() for it in (salt, stored, server))
    return f"SCRAM-SHA-256${_ITERATIONS}:{salt_text}${stored_text}:{server_text}"


async def set_passwords(admin_url: str, passwords: Mapping[str, str]) -> None:
    """Give roles these passwords, all or none; open sessions go on. Raises StoreUnavailable if that is not possible."""
    async with _admin(admin_url) as connection:
        await give_passwords(connection, passwords)


async def renew_passwords(admin_url: str, passwords: Mapping[str, str]) -> None:
    """Give roles these passwords where the old ones may be known to others: sessions end first, and none begins before
    the new passwords are in force. No session can change them in between.

    Raises StoreUnavailable if that is not possible; all roles that could be closed are, until the next call.
    """
    async with _admin(admin_url) as connection:
        closed = list[str]()
        failed: Exception | None = None
        for role in passwords:
            try:
                await _alter(connection, role, [await connection.fetchval(_CLOSE, role)])
            except (asyncpg.PostgresError, TimeoutError) as error:
                # The old passwords of the others open nothing more all the same.
                failed = error
            else:
                closed.append(role)
        while await connection.fetchval(_END_SESSIONS, closed, _ENDED_WITHIN_MS):
            pass
        if failed is not None:
            raise failed
        await give_passwords(connection, passwords)


async def give_passwords(connection: asyncpg.Connection[Any], passwords: Mapping[str, str]) -> None:
    """Give roles these passwords and the settings that they had from the migrations, all or none.

    Raises asyncpg.PostgresError if the server refuses, TimeoutError if sessions of a role hold it up.
    """
    async with connection.transaction():
        for role, password in passwords.items():
            # A role's password cannot be a parameter of the statement that sets it.
            statements = [await connection.fetchval(_OPEN, role, verifier(password))]
            if role in ROLE_SETTINGS:
                statements += [await connection.fetchval(reset, role) for reset in (_RESET, _RESET_HERE)]
                settings = ROLE_SETTINGS[role].items()
                statements += [await connection.fetchval(_SETTING, role, name, value) for name, value in settings]
            await _alter(connection, role, statements)


async def _alter(connection: asyncpg.Connection[Any], role: str, statements: Iterable[str]) -> None:
    """Run statements that change a role. Sessions of the role that change it at the same time are ended.

    Raises TimeoutError if new ones come for longer than `_WITHIN_S`.
    """
    async with asyncio.timeout(_WITHIN_S):
        while True:
            try:
                async with connection.transaction():
                    await connection.execute(_LOCK_WITHIN)
                    await connection.execute("; ".join(statements))
            except (asyncpg.LockNotAvailableError, asyncpg.InternalServerError):
                # It has changed the role and holds it, or has just committed that ("tuple concurrently updated").
                await connection.fetchval(_END_SESSIONS, [role], _ENDED_WITHIN_MS)
            else:
                return


async def end_sessions(admin_url: str, roles: Collection[str]) -> None:
    """End the open sessions of roles, but for this one. Raises StoreUnavailable if that is not possible."""
    async with _admin(admin_url) as connection:
        await connection.fetchval(_END_SESSIONS, list(roles), _ENDED_WITHIN_MS)


@asynccontextmanager
async def _admin(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    with translated():
        connection = await connect(url, timeout=CONNECT_TIMEOUT_S, command_timeout=COMMAND_TIMEOUT_S, ssl=False)
        try:
            yield connection
        finally:
            connection.terminate()
