"""Connections to Postgres, to servers that may be sent a password."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg

from holdfast.network.guard import addresses_of
from holdfast.network.impostors import refuse_listener
from holdfast.network.trust import asks_for_tls, is_loopback

_PORT = 5432


async def connect(url: str, **options: Any) -> asyncpg.Connection[Any]:
    """Connect as `asyncpg.connect` does. Raises Impostor, an OSError, if another user of the machine has the port:
    asyncpg sends the password to any server that asks for it.
    """
    parts = urlsplit(url)
    is_local = False
    if parts.hostname and not asks_for_tls(url):
        addresses = addresses_of(parts.hostname)
        is_local = bool(addresses) and all(map(is_loopback, addresses))
        for address in addresses:
            if is_loopback(address):
                refuse_listener((address, parts.port or _PORT))
    if is_local and "ssl" not in options and not _names_mode(url):
        # asyncpg asks for TLS first, and if it is cancelled then, it leaves an error that nothing retrieves.
        with suppress(_OnlyWithTls):
            return await _connect_plain(url, options)
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url, **options)
    return connection


class _OnlyWithTls(Exception):
    """The server may take connections with TLS only."""


async def _connect_plain(url: str, options: dict[str, Any]) -> asyncpg.Connection[Any]:
    try:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(url, ssl=False, **options)
    except asyncpg.InvalidPasswordError:
        raise
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.ProtocolViolationError) as error:
        # The second is a pooler's, such as PgBouncer.
        raise _OnlyWithTls from error
    return connection


def _names_mode(url: str) -> bool:
    """Return True if the address, or the environment, says whether to use TLS."""
    return "sslmode" in parse_qs(urlsplit(url).query) or bool(os.environ.get("PGSSLMODE"))
