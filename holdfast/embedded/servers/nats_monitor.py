"""The monitor of nats-server: its write errors, its connections, and the reload of its configuration."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.embedded.errors import EmbeddedError

_ANSWER_WITHIN_S = 2.0
_RELOADED_WITHIN_S = 20.0
_ASK_AGAIN_S = 0.02
_CONNECTIONS_MAX = 100_000
_WRITE_ERROR = "write error"

T = TypeVar("T")


class _Health(msgspec.Struct, frozen=True):
    status: str = ""
    error: str = ""


class _Connection(msgspec.Struct, frozen=True):
    start: datetime
    authorized_user: str = ""


class _Connections(msgspec.Struct, frozen=True):
    connections: list[_Connection] = []


class _Variables(msgspec.Struct, frozen=True):
    config_load_time: str


async def write_error(monitor_url: str) -> str | None:
    """Return the write error that a nats-server reports; None if it reports none, or its monitor does not answer."""
    health = await _get(monitor_url, "/healthz", _Health)
    return health.error if health is not None and _WRITE_ERROR in health.error else None


async def connections(monitor_url: str, since: Mapping[str, datetime]) -> Counter[str]:
    """Return the number of connections of each user; none if the monitor does not answer.

    Those from before `since` do not count: the server lists them for a moment after it has cut them.
    """
    found = await _get(monitor_url, f"/connz?auth=1&limit={_CONNECTIONS_MAX}", _Connections)
    if found is None:
        return Counter()
    return Counter(
        it.authorized_user
        for it in found.connections
        if it.authorized_user not in since or it.start >= since[it.authorized_user]
    )


async def reload(monitor_url: str, pid: int) -> None:
    """Have a nats-server read its changed configuration, and wait until it has. Raises EmbeddedError if it does not."""
    before = await _get(monitor_url, "/varz", _Variables)
    os.kill(pid, signal.SIGHUP)
    try:
        async with asyncio.timeout(_RELOADED_WITHIN_S):
            # The server sends no event for it.
            while (now := await _get(monitor_url, "/varz", _Variables)) is None or now == before:  # noqa: ASYNC110
                await asyncio.sleep(_ASK_AGAIN_S)
    except TimeoutError:
        raise EmbeddedError(
            f"nats-server (pid {pid}) has not read its configuration within {_RELOADED_WITHIN_S:g} s: see its log"
        ) from None


async def _get(monitor_url: str, path: str, type_: type[T]) -> T | None:
    address = urlsplit(monitor_url)
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                writer.write(b"GET %s HTTP/1.0\r\n\r\n" % path.encode())
                answer = await reader.read()
            finally:
                writer.close()
        return msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=type_)
    except (OSError, TimeoutError, msgspec.DecodeError):
        return None
