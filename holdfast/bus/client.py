"""nats-py's client, made robust in what it reads, and careful in which servers it sends a password to."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable

from holdfast.bus import BusError
from holdfast.bus.nats_py import Client, Msg, Subscription, nats
from holdfast.network.guard import addresses_of
from holdfast.network.impostors import Impostor, refuse_peer
from holdfast.network.tls import TlsFilesRefused, client_context, why_refused
from holdfast.network.trust import AddressRefused, allows_plain_text, is_loopback, require_private_bus
from holdfast.settings.network import NO_FILES, NetworkPolicy

_HEADER_BLOCK = re.compile(rb"NATS/1\.0(?: [\x20-\x7e]*)?\r\n(?:[^\r\n]+\r\n)*\r\n")


CUT = (ConnectionResetError, BrokenPipeError)
"""Errors of a write on a connection that the server has closed; the server's reason may still be unread."""


class ServerRefused(nats.errors.Error):
    """A server to which this process sends no password."""


class _AtOnce(asyncio.Queue[Msg]):
    """A queue that hands each message on as it comes."""

    def __init__(self, take: Callable[[Msg], None]) -> None:
        super().__init__()
        self._take = take

    def put_nowait(self, item: Msg) -> None:
        self._take(item)


class HardenedClient(Client):
    """A client that reads on after messages that bypass client libraries, and sends passwords to trusted servers only.

    nats-py silently stops reading at a header block or subject that it cannot parse. A stream would deliver the same
    message again on every connection; here the message arrives, without the broken part.
    """

    def __init__(self, network: NetworkPolicy = NO_FILES) -> None:
        super().__init__()
        self._network = network

    @property
    def tls_server(self) -> tuple[str, int] | None:
        """Host and port of the server that it is connected to, or was last; None: that wants no TLS."""
        address = self._current_server.uri if self._current_server is not None else None
        if not (address and address.hostname and address.port and self._server_info.get("tls_required")):
            return None
        return address.hostname, address.port

    async def receive(self, subject: str, take: Callable[[Msg], None], queue: str = "") -> Subscription:
        """Subscribe with a function that never waits, and is called while the message is read.

        nats-py would queue the message for a task of the subscription: another turn of the loop for each.
        """
        subscription = await self.subscribe(subject, queue=queue, pending_msgs_limit=0, pending_bytes_limit=0)
        early, subscription._pending_queue = subscription._pending_queue, _AtOnce(take)
        while not early.empty():
            take(early.get_nowait())
        return subscription

    async def _flush_pending(self, force_flush: bool = False) -> object:
        """Raise CancelledError if the task is to end meanwhile: nats-py catches it, and a publisher would go on."""
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        flushed: object = await super()._flush_pending(force_flush)
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
        return flushed

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Report the end also of a connection that was cut with something unsent: nats-py would stop at that error."""
        try:
            await super()._close(status, do_cbs)
        except OSError:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]
            if do_cbs and self._closed_cb is not None:
                await self._closed_cb()

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except ssl.SSLError:
            # asyncio has closed the socket with the failed handshake, and nats-py would wait for its end in vain.
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]
                self._transport = None
            raise

    def _connect_command(self) -> bytes:
        """Return the command that has the password. Raises ServerRefused if it could be read on the way."""
        assert self._current_server is not None
        address = self._current_server.uri
        if not self._server_info.get("tls_required"):
            # nats-py takes `tls://` as a wish.
            if address.scheme == "tls":
                raise ServerRefused("it offers no TLS, and its address is tls://")
            if not (self._network.plain_text or allows_plain_text(address.query)):
                self._require_near()
        elif (writer := getattr(self._transport, "_io_writer", None)) and (stream := writer.transport.get_protocol()):
            # nats-py changes to TLS on an open connection, which asyncio then does not note; it would warn at its end.
            stream._over_ssl = True
        return super()._connect_command()

    def _require_near(self) -> None:
        """Raise ServerRefused unless the socket leads to loopback, and to no other user's process. The name in the
        address may mean another machine by now.
        """
        writer = getattr(self._transport, "_io_writer", None)
        # A websocket has no such writer; its name was resolved before.
        if writer is None:
            return
        own, peer = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        if not is_loopback(peer[0]):
            raise ServerRefused("it offers no TLS, and is not on loopback")
        try:
            refuse_peer(own[:2], peer[:2])
        except Impostor as error:
            raise ServerRefused(str(error)) from error

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        readable = bytes(subject).decode(errors="backslashreplace").encode()
        sound = headers if headers and _HEADER_BLOCK.fullmatch(headers) else b""
        await super()._process_msg(sid, readable, reply, data, sound)


def tls_context(url: str, network: NetworkPolicy) -> ssl.SSLContext | None:
    """Return the context for servers that offer TLS, None for nats-py's own.

    Raises BusError if an address would be reached in plain text, or a file of `network` cannot be used.
    """
    try:
        require_private_bus(url, network, addresses_of)
        return client_context(network) if network.tls_ca or network.tls_cert else None
    except (AddressRefused, TlsFilesRefused) as error:
        raise BusError(str(error)) from error


def refusal(error: Exception | None) -> str:
    """Return why one side does not trust the other; "" if it is another error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return why_refused(error)
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        alert = error.reason.partition("ALERT_")[2].replace("_", " ").lower()
        return f"it wants a certificate that it trusts ({alert}). Name this process's with tls_cert and tls_key"
    return str(error) if isinstance(error, ServerRefused) else ""


async def end_of_tls(host: str, port: int, context: ssl.SSLContext, within_s: float) -> Exception | None:
    """Return the error with which the server ends a TLS connection on which this side sends nothing."""
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                await reader.readline()  # The server's description of itself, in plain text.
                await writer.start_tls(context, server_hostname=host)
                await reader.read(1)
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        return error
    return None
