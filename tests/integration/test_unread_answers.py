"""A client that asks or subscribes and never reads: what nats-server keeps for it, and for all connections of it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from urllib.request import urlopen

import msgspec
import pytest
from bus_worlds import WITHIN_S, message
from servers import HOST, NatsServer

from holdfast.bus import BusError
from holdfast.bus.link import Link
from holdfast.bus.nats import NatsBus
from holdfast.subjects import ROOT

pytestmark = pytest.mark.integration

EVENT_BYTES = 1_000_000
KEPT_BYTES = 64 << 20
ASKED = 60
"""Answers that are more than the server may keep."""


class Connection(msgspec.Struct, frozen=True):
    """A connection as the monitor of nats-server shows it."""

    cid: int
    pending_bytes: int


class Connections(msgspec.Struct, frozen=True):
    """All of them."""

    connections: list[Connection]


@pytest.mark.parametrize("asked", ['{"seq":%d}', '{"seq":%d,"next_by_subj":">","batch":1000}'])
async def test_the_server_cuts_off_a_node_that_reads_no_answer(
    guarded: NatsServer, operator: NatsBus, asked: str
) -> None:
    event = message(f"{ROOT}.evidence.process_exited.job.n1", bytes(EVENT_BYTES))
    (position,) = await operator.publish_all([event])
    body = (asked % position.sequence).encode()
    login = {"user": "agent-n1", "pass": guarded.passwords()["agent-n1"], "verbose": False, "headers": True}
    request = f"PUB $JS.API.DIRECT.GET.{position.stream} _INBOX.agent-n1.x {len(body)}\r\n".encode() + body + b"\r\n"
    with socket.create_connection((HOST, guarded.port), timeout=WITHIN_S) as stuck:
        greeting = msgspec.json.decode(stuck.makefile("rb").readline().removeprefix(b"INFO "))
        stuck.sendall(b"CONNECT " + msgspec.json.encode(login) + b"\r\nSUB _INBOX.agent-n1.> 1\r\n" + ASKED * request)
        async with asyncio.timeout(WITHIN_S):
            while (kept := await _kept_bytes(guarded, greeting["client_id"])) is not None:
                assert kept < KEPT_BYTES + 2 * EVENT_BYTES
                await asyncio.sleep(0.01)


async def _kept_bytes(server: NatsServer, client: int) -> int | None:
    """Return what the server keeps for a connection; None: it has cut it off."""
    url = f"http://{HOST}:{server.ports.nats_monitor}/connz?cid={client}"
    body = await asyncio.to_thread(lambda: urlopen(url, timeout=WITHIN_S).read())
    found = msgspec.json.decode(body, type=Connections).connections
    return found[0].pending_bytes if found else None


@pytest.mark.parametrize(("user", "connections"), [("agent-n1", 8), ("reader", 16)])
async def test_an_account_has_few_connections(guarded: NatsServer, user: str, connections: int) -> None:
    async with AsyncExitStack() as held:

        async def connect() -> None:
            link = await Link.open(guarded.url_of(user), user)
            held.push_async_callback(link.close)

        for _ in range(connections):
            await connect()
        with pytest.raises(BusError):
            await connect()
