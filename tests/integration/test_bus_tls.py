"""TLS to a real nats-server: whom a client trusts, whom the server lets in, and to whom no password is sent."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from certificate_files import Authority
from servers import NatsServer

from holdfast.bus import BusError
from holdfast.bus.client import HardenedClient, ServerRefused
from holdfast.bus.link import Link
from holdfast.bus.nats import connect
from holdfast.embedded.processes.children import ChildSpec
from holdfast.settings.network import NO_FILES, NetworkPolicy

pytestmark = pytest.mark.integration

INFO = {"server_id": "x", "max_payload": 1048576, "headers": True, "auth_required": True}


class TlsNatsServer(NatsServer):
    """nats-server with a certificate, which lets in only clients with one of the same authority."""

    def __init__(self, directory: Path, own: NetworkPolicy) -> None:
        super().__init__(directory)
        self.own = own

    def url_of(self, user: str, password: str = "") -> str:
        return super().url_of(user, password).replace("nats://", "tls://")

    async def spec(self) -> ChildSpec:
        spec = await super().spec()
        files = {"cert_file": self.own.tls_cert, "key_file": self.own.tls_key, "ca_file": self.own.tls_ca}
        with (self.directory / "nats.conf").open("a") as config:
            config.write(f"\ntls {json.dumps(files | {'verify': True})}\n")

        async def answers() -> None:
            # Until the port is bound there is nothing to refuse.
            while True:
                try:
                    socket.create_connection(("127.0.0.1", self.port)).close()
                    return
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)

        return dataclasses.replace(spec, probe=answers)


@asynccontextmanager
async def running(server: TlsNatsServer) -> AsyncIterator[TlsNatsServer]:
    await server.start()
    try:
        yield server
    finally:
        server.stop()


async def test_certificates_open_the_bus_and_without_them_it_stays_closed(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    client = authority.certified("client", [])
    async with running(TlsNatsServer(tmp_path / "nats", authority.certified("nats", ["127.0.0.1"]))) as server:
        bus = await connect(server.url, "trusted", network=client, timeout_s=10)
        assert await bus.stream_state("DECISIONS")
        await bus.close()
        refused = {
            "its certificate fails verification .*tls_ca must name its authority": other.certified("client", []),
            "its certificate fails verification": NO_FILES,
            "it wants a certificate that it trusts .certificate required.* with tls_cert": authority.trusting,
            "it wants a certificate that it trusts .*certificate expired": authority.certified("ended", [], days=-1),
        }
        for said, network in refused.items():
            with pytest.raises(BusError, match=f"127.0.0.1:{server.port} is refused: {said}"):
                await Link.open(server.url, "distrusted", network)
        with pytest.raises(BusError, match="Hostname mismatch, certificate is not valid for 'localhost'"):
            await Link.open(server.url.replace("127.0.0.1", "localhost"), "elsewhere", client)


async def test_a_certificate_that_has_ended_is_refused_until_the_server_reads_a_new_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.certified("client", [])
    ended = authority.certified("nats", ["127.0.0.1"], days=-1)
    async with running(TlsNatsServer(tmp_path / "nats", ended)) as server:
        with pytest.raises(BusError, match=r"is refused: its certificate fails verification \(certificate has expired"):
            await connect(server.url, "careful", network=client)
        # It reads its files again with its configuration.
        authority.certified("nats", ["127.0.0.1"])
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)
        await until_let_in(server, client)
        assert server.process.poll() is None


async def until_let_in(server: TlsNatsServer, client: NetworkPolicy) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                return await (await Link.open(server.url, "careful", client)).close()
            except BusError:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def pretending(host: str, sent: bytearray, **info: list[str]) -> AsyncIterator[int]:
    """A server without TLS that keeps what it is sent, and hangs up when that is a farewell."""

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(INFO | info).encode() + b"\r\n")
        while chunk := await reader.read(1024):
            sent.extend(chunk)
            if b"farewell" in chunk:
                break
            writer.write(b"PONG\r\n" * chunk.count(b"PING\r\n"))
        writer.close()

    async with await asyncio.start_server(pretend, host, 0) as listening:
        yield listening.sockets[0].getsockname()[1]


async def test_a_password_for_tls_is_not_sent_to_a_server_without(tmp_path: Path) -> None:
    sent = bytearray()
    async with pretending("127.0.0.1", sent) as port:
        for network in (NO_FILES, Authority(tmp_path).trusting, NetworkPolicy(plain_text=True)):
            with pytest.raises(BusError, match="is refused: it offers no TLS, and its address is tls://"):
                await Link.open(f"tls://controller:secret@127.0.0.1:{port}", "careful", network)
    assert b"secret" not in sent


async def test_no_password_leaves_the_machine_in_plain_text_unless_that_is_allowed() -> None:
    sent = bytearray()
    outside = _outside()
    async with pretending(outside, sent) as port:
        url = f"nats://controller:secret@{outside}:{port}"
        with pytest.raises(BusError, match=rf"^NATS at {outside}:{port} would be reached without TLS, and"):
            await connect(url, "careful")
        # A name that led to loopback when it was checked may lead elsewhere now.
        client = HardenedClient()
        with pytest.raises(ServerRefused, match="is not on loopback"):
            await client.connect(url, allow_reconnect=False)
        await client.close()
        assert b"secret" not in sent
        for allowed, network in ((url, NetworkPolicy(plain_text=True)), (f"{url}?plain_text=true", NO_FILES)):
            sent.clear()
            await (await Link.open(allowed, "careless", network)).close()
            assert b"secret" in sent


async def test_servers_that_a_server_names_are_not_asked() -> None:
    told, sent = bytearray(), bytearray()
    async with (
        pretending("127.0.0.1", told) as elsewhere,
        pretending("127.0.0.1", sent, connect_urls=[f"127.0.0.1:{elsewhere}"]) as port,
    ):
        link = await Link.open(f"nats://controller:secret@127.0.0.1:{port}", "careful")
        await link.send("farewell", b"")
        await link.ended.wait()
        await link.close()
    assert b"secret" in sent and not told


def _outside() -> str:
    """An address of this machine outside of loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address outside of loopback")
        return str(probe.getsockname()[0])
