"""Connections to Postgres, to servers that may be sent a password."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

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
    if parts.hostname and not asks_for_tls(url):
        for address in addresses_of(parts.hostname):
            if is_loopback(address):
                refuse_listener((address, parts.port or _PORT))
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url, **options)
    return connection
