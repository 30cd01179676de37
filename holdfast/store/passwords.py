"""The passwords of the database's roles, renewed while the roles are in use."""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from holdfast.store.connections import COMMAND_TIMEOUT_S, CONNECT_TIMEOUT_S, translated

_SET = "select format('alter role %I with login password %L', $1::text, $2::text)"
_END_SESSIONS = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
where usename = any($1::text[]) and backend_type = 'client backend' and pid <> pg_backend_pid()
"""


_ITERATIONS = 4096
"""As Postgres itself has it; more would protect nothing, for our passwords are random."""


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
    async with _admin(admin_url) as connection, connection.transaction():
        for role, password in passwords.items():
            # A role's password cannot be a parameter of the statement that sets it.
            await connection.execute(await connection.fetchval(_SET, role, verifier(password)))


async def end_sessions(admin_url: str, roles: Collection[str]) -> None:
    """End the open sessions of roles, but for this one. Raises StoreUnavailable if that is not possible."""
    async with _admin(admin_url) as connection:
        await connection.fetchval(_END_SESSIONS, list(roles))


@asynccontextmanager
async def _admin(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    with translated():
        connection = await asyncpg.connect(url, timeout=CONNECT_TIMEOUT_S, command_timeout=COMMAND_TIMEOUT_S, ssl=False)
        try:
            yield connection
        finally:
            connection.terminate()
