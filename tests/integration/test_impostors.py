"""Another user of the machine has the port of a server that is down: no password is sent to it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import asyncpg
import pytest

from holdfast.bus import BusError
from holdfast.bus.link import Link
from holdfast.embedded.servers.readiness import nats_answers, postgres_answers
from holdfast.network import impostors, socket_owners
from holdfast.network.impostors import Impostor, refuse_listener
from holdfast.store import StoreUnavailable
from holdfast.store.connecting import connect
from holdfast.store.passwords import set_passwords

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user"),
]
SECRET = b"the-password"
SERVES = """
import os, socket, sys
greeting, fd, uid = bytes.fromhex(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
os.setresuid(uid, uid, uid)
# The kernel notes whose a socket is when it is made.
listener = socket.socket(socket.AF_INET if sys.argv[4] != "::1" else socket.AF_INET6)
listener.bind((sys.argv[4], 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
while True:
    link, _ = listener.accept()
    if greeting.startswith(b"INFO"):
        link.sendall(greeting)
    else:
        first = link.recv(4096)
        if first == bytes.fromhex("0000000804d2162f"):
            link.sendall(b"N")  # no TLS
            first = link.recv(4096)
        os.write(fd, first)
        link.sendall(greeting)
    link.settimeout(1)
    try:
        while part := link.recv(4096):
            os.write(fd, part)
    except OSError:
        pass
    link.close()
"""
NATS = b'INFO {"server_id":"x","version":"2.11.0","proto":1,"headers":true,"jetstream":true,"max_payload":1048576}\r\n'
POSTGRES = b"R\0\0\0\x08\0\0\0\x03"
"""It asks for the password itself, as old servers do."""


class Impersonator:
    """A server of another user, and what it was sent."""

    def __init__(self, address: str, port: int, received: int) -> None:
        self._address = address
        self.port = port
        self._received = received

    async def received(self) -> bytes:
        """All that it was sent so far: it serves one connection after the other, and this is the last."""
        _, writer = await asyncio.open_connection(self._address, self.port)
        writer.write(_END)
        await writer.drain()
        found = b""
        while _END not in found:
            found += await asyncio.to_thread(os.read, self._received, 1 << 16)
        writer.close()
        return found


_END = b"the end"


@contextmanager
def impersonating(greeting: bytes, uid: int = 4242, address: str = "127.0.0.1") -> Iterator[Impersonator]:
    read, write = os.pipe()
    command = [sys.executable, "-I", "-c", SERVES, greeting.hex(), str(write), str(uid), address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=(write,), cwd="/")
    os.close(write)
    try:
        assert process.stdout is not None
        yield Impersonator(address, int(process.stdout.readline()), read)
    finally:
        process.kill()
        process.communicate()
        os.close(read)


async def _bus(port: int) -> None:
    await (await Link.open(f"nats://operator:{SECRET.decode()}@127.0.0.1:{port}", "test")).close()


async def _by_name(port: int) -> None:
    await (await Link.open(f"nats://operator:{SECRET.decode()}@localhost:{port}", "test")).close()


async def _bus_probe(port: int) -> None:
    async with asyncio.timeout(1):
        await nats_answers("127.0.0.1", port, user="operator", password=SECRET.decode())


async def _database(port: int) -> None:
    await connect(f"postgresql://postgres:{SECRET.decode()}@127.0.0.1:{port}/holdfast", timeout=2)


async def _passwords(port: int) -> None:
    await set_passwords(f"postgresql://postgres:{SECRET.decode()}@localhost:{port}/holdfast", {})


async def _database_probe(port: int) -> None:
    async with asyncio.timeout(1):
        await postgres_answers(f"postgresql://postgres:{SECRET.decode()}@127.0.0.1:{port}/postgres")


REFUSED = (BusError, Impostor, StoreUnavailable, TimeoutError)
TRIES: list[tuple[bytes, Callable[[int], Awaitable[None]]]] = [
    (NATS, _bus),
    (NATS, _by_name),
    (NATS, _bus_probe),
    (POSTGRES, _database),
    (POSTGRES, _passwords),
    (POSTGRES, _database_probe),
]


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(("greeting", "attempt"), TRIES, ids=[attempt.__name__ for _, attempt in TRIES])
async def test_no_password_is_sent_to_another_users_process(
    greeting: bytes, attempt: Callable[[int], Awaitable[None]], address: str
) -> None:
    with impersonating(greeting, address=address) as impostor:
        with pytest.raises(REFUSED) as refused:
            await attempt(impostor.port)
        if not isinstance(refused.value, TimeoutError):
            assert f"user 4242 of this machine has 127.0.0.1:{impostor.port}" in str(refused.value)
        assert SECRET not in await impostor.received()


@pytest.mark.parametrize("uid", [0, 105, 65534], ids=["ours", "a system account", "nobody"])
async def test_servers_of_the_system_are_believed(uid: int) -> None:
    """Otherwise the test above could not fail: these are sent the password."""
    for greeting, attempt in ((NATS, _bus), (POSTGRES, _database)):
        with impersonating(greeting, uid) as server:
            # It answers no further.
            with suppress(BusError, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await attempt(server.port)
            assert SECRET in await server.received()


async def test_another_server_of_ours_on_the_port_of_another_address_is_no_matter() -> None:
    with impersonating(NATS, address="127.0.0.2") as other, socket.create_server(("127.0.0.1", other.port)):
        refuse_listener(("127.0.0.1", other.port))
        with pytest.raises(Impostor):
            refuse_listener(("127.0.0.2", other.port))


async def test_listeners_on_ipv6_are_found() -> None:
    with impersonating(NATS, address="::1") as impostor:
        with pytest.raises(Impostor):
            refuse_listener(("::1", impostor.port))
        refuse_listener(("127.0.0.1", impostor.port))


async def test_where_the_kernel_answers_nothing_about_one_socket_the_tables_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_owners, "_asked", lambda *_: None)
    with impersonating(NATS) as impostor, pytest.raises(Impostor):
        refuse_listener(("127.0.0.1", impostor.port))


async def test_whose_cluster_is_used_and_whom_settings_allow_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    with impersonating(NATS) as server:
        place = ("127.0.0.1", server.port)
        for trusted in (4242, impostors.EVERYONE):
            with pytest.raises(Impostor):
                refuse_listener(place)
            with monkeypatch.context() as patched:
                patched.setattr(impostors, "_trusted", set())
                impostors.trust(trusted)
                refuse_listener(place)
