"""One connection to a NATS server, from its opening to its loss. `holdfast.bus.connection` opens the next one.

nats-py's own reconnection keeps what could not be sent and sends it later, unseen; a link that ends with its
connection leaves no doubt about what was sent, and its end wakes everybody who waits on it.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import ssl
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import structlog

from holdfast.bus import BusError, BusUnavailable, NoResponder, wire_bytes
from holdfast.bus.client import CUT, HardenedClient, end_of_tls, refusal, tls_context
from holdfast.bus.nats_py import Msg, Subscription, nats
from holdfast.settings.network import NO_FILES, NetworkPolicy

CONNECT_TIMEOUT_S = 2
PING_S = 2
"""A connection whose peer answers none of three pings in a row is given up: silence is noticed within about 8 s."""
ANSWER_TIMEOUT_S = 5.0
BACKLOG_BYTES_MAX = 64 << 20
"""Bytes of one subscription that wait to be taken: a node may send 8 MB at a time, faster than any service reads."""
CLOSE_TIMEOUT_S = 2.0

_UNAVAILABLE = 503

R = TypeVar("R", bound=msgspec.Struct)

log = structlog.get_logger(__name__)


class LinkLost(BusUnavailable):
    """The connection ended."""


class ApiError(msgspec.Struct, frozen=True):
    """JetStream's refusal."""

    code: int
    err_code: int = 0
    description: str = ""


class ApiRefusal(BusError):
    """JetStream refused a request for good; `error` is its answer."""

    def __init__(self, what: str, error: ApiError) -> None:
        super().__init__(f"{what}: JetStream answers {error.description!r} (code {error.err_code})")
        self.error = error


class _MaybeError(msgspec.Struct, frozen=True):
    error: ApiError | None = None


_maybe_error = msgspec.json.Decoder(_MaybeError)


class _Drained(msgspec.Struct, frozen=True):
    """Flow control: confirm on `reply` that all earlier messages were taken."""

    reply: str


class Inflow:
    """Messages of one subscription of a link, in order."""

    def __init__(self, link: Link, backlog_max: int | None) -> None:
        self._link = link
        self._backlog_max = backlog_max
        self._bytes = 0
        """Size of the messages that were not taken yet; counted only if there is a limit."""
        self._arrived: asyncio.Queue[Msg | _Drained | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._received_at = self._loop.time()
        self.subscription: Subscription | None = None

    def take(self, message: Msg) -> None:
        self._received_at = self._loop.time()
        if is_control(message):
            # A full consumer waits for a sign that its messages are taken: given when this one's turn comes.
            stalled = (message.headers or {}).get("Nats-Consumer-Stalled")
            if message.reply or stalled:
                self._arrived.put_nowait(_Drained(message.reply or stalled or ""))
            return
        if self._backlog_max is not None:
            self._bytes += _size(message)
            while self._arrived.qsize() >= self._backlog_max or (
                self._bytes > BACKLOG_BYTES_MAX and not self._arrived.empty()
            ):
                self._bytes -= _size(self._arrived.get_nowait())
        self._arrived.put_nowait(message)

    def put_first(self, messages: list[Msg]) -> None:
        """Deliver these before what arrived already."""
        arrived = [self._arrived.get_nowait() for _ in range(self._arrived.qsize())]
        for message in (*messages, *arrived):
            self._arrived.put_nowait(message)

    def end(self) -> None:
        """Wake the waiting tasks: the link is lost."""
        self._arrived.put_nowait(None)

    async def next(self, silence_s: float | None = None) -> Msg:
        """Return the next message.

        Raises LinkLost when the connection ends (messages not yet taken are forgotten with it), TimeoutError when
        nothing, not even a heartbeat, came for `silence_s` seconds.
        """
        while True:
            if self._link.lost:
                raise LinkLost("connection lost")
            if not self._arrived.empty():
                message = self._arrived.get_nowait()
            elif silence_s is None:
                message = await self._arrived.get()
            else:
                try:
                    async with asyncio.timeout_at(self._received_at + silence_s):
                        message = await self._arrived.get()
                except TimeoutError:
                    if self._loop.time() < self._received_at + silence_s:
                        continue
                    raise
            if isinstance(message, _Drained):
                await self._link.send(message.reply, b"")
            elif message is not None:
                if self._backlog_max is not None:
                    self._bytes -= _size(message)
                return message

    async def close(self) -> None:
        """Stop receiving."""
        self._link.inflows.discard(self)
        if self.subscription is not None and not self._link.lost:
            try:
                await self.subscription.unsubscribe()
            except nats.errors.Error:
                pass  # closed or closing: the server forgets the subscription with the connection


def _size(message: Msg | _Drained | None) -> int:
    return wire_bytes(message.data, message.headers) if isinstance(message, Msg) else 0


def is_control(message: Msg) -> bool:
    """Return True for a message of JetStream itself: a heartbeat, or a question of its flow control."""
    return not message.data and bool(message.headers) and (message.headers or {}).get("Status") == "100"


NO_MESSAGE = ("404", "408")
"""Statuses of a direct read without a result: the stream has no such message, or cannot have one (number 0)."""


def status_of(message: Msg) -> str | None:
    """Return the status that the server sent in place of an answer, such as 503."""
    return message.headers.get("Status") if message.headers and not message.data else None


def address_of(url: str) -> str:
    """Return the server's address without credentials, for messages."""
    return ", ".join(urlsplit(part).netloc.rpartition("@")[2] or part for part in url.split(","))


def inbox_prefix(url: str) -> str:
    """Return the prefix of this user's inboxes: accounts let no user subscribe to those of others."""
    try:
        user = urlsplit(url.split(",")[0]).username
    except ValueError:
        user = None
    return f"_INBOX.{user}" if user and re.fullmatch(r"[\w-]+", user, re.ASCII) else "_INBOX"


_DENIED_PUBLISH = re.compile(r'permissions violation for publish to "([^"]*)"')


class Link:
    """A live connection with request and reply; open it with `Link.open`."""

    def __init__(self, address: str, network: NetworkPolicy) -> None:
        self.address = address
        self.inflows: set[Inflow] = set()
        self.ended = asyncio.Event()
        self._client = HardenedClient(network)
        self._answers: dict[str, tuple[str, asyncio.Future[Msg | None]]] = {}
        self._tokens = itertools.count()
        self._inbox = ""
        self._last_error: Exception | None = None

    @classmethod
    async def open(cls, url: str, name: str, network: NetworkPolicy = NO_FILES) -> Link:
        """Connect to `url` (several are separated by commas).

        Raises BusUnavailable if no server answers, BusError if it refuses these credentials, or `network` refuses it.
        """
        try:
            return await cls._open(url, name, network)
        except BusUnavailable as error:
            # A server that refuses a password may cut the connection before its reason was read: ask once more.
            if not isinstance(error.__cause__, CUT):
                raise
            return await cls._open(url, name, network)

    @classmethod
    async def _open(cls, url: str, name: str, network: NetworkPolicy) -> Link:
        context = tls_context(url, network)
        client = (link := cls(address_of(url), network))._client
        try:
            await client.connect(
                servers=url.split(","),
                name=name,
                inbox_prefix=inbox_prefix(url),
                tls=context,
                allow_reconnect=False,
                # For nats-py, 0 means no limit.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_TIMEOUT_S,
                ping_interval=PING_S,
                flush_timeout=CONNECT_TIMEOUT_S,
                error_cb=link._on_error,
                closed_cb=link._on_closed,
            )
            link._inbox = client.new_inbox()
            await client.receive(f"{link._inbox}.*", link._on_answer)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            await link.close()  # nats-py leaves the socket of a failed attempt open
            cause = str(link._last_error or error) or type(error).__name__
            if "authorization" in cause.lower():
                raise BusError(f"the NATS server at {link.address} refuses these credentials") from error
            reason = refusal(error) or refusal(link._last_error)
            if not reason and isinstance(error, CUT) and (server := client.tls_server):
                trusting = context or ssl.create_default_context()
                reason = refusal(await end_of_tls(*server, trusting, CONNECT_TIMEOUT_S))
            if reason:
                raise BusError(f"the NATS server at {link.address} is refused: {reason}") from error
            raise BusUnavailable(f"no NATS server answers at {link.address}: {cause}") from error
        except BaseException:
            await link.close()
            raise
        return link

    @property
    def lost(self) -> bool:
        return self._client.is_closed

    @property
    def max_payload(self) -> int:
        """Largest message of the server, in bytes with headers."""
        return self._client.max_payload

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        log.debug("nats", address=self.address, error=str(error) or type(error).__name__)
        if "permissions violation" in str(error):
            log.error("the NATS server denies an operation", address=self.address, error=str(error))
            self._refuse_denied(str(error))

    def _refuse_denied(self, error: str) -> None:
        """Raise in the publishers whose messages the server denied: no answer comes, only this error."""
        denied = _DENIED_PUBLISH.search(error)
        for subject, answer in list(self._answers.values()):
            if denied is not None and subject.lower() == denied[1].lower() and not answer.done():
                answer.set_exception(BusError(f"the NATS server at {self.address} denies these credentials {subject}"))

    async def _on_closed(self) -> None:
        self.mark_ended()

    def mark_ended(self) -> None:
        """Wake all tasks that wait on this link."""
        self.ended.set()
        for _, answer in list(self._answers.values()):
            if not answer.done():
                answer.set_result(None)
        for inflow in list(self.inflows):
            inflow.end()

    def _on_answer(self, message: Msg) -> None:
        asked = self._answers.pop(message.subject.rpartition(".")[2], None)
        if asked is not None and not asked[1].done():
            asked[1].set_result(message)

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    async def send(self, subject: str, body: bytes, *, reply: str = "", headers: dict[str, str] | None = None) -> None:
        """Publish; a return does not mean that it arrived.

        Raises LinkLost when the connection ended, BusError when the message itself cannot be sent.
        """
        size = wire_bytes(body, headers)
        if size > self.max_payload:
            raise BusError(
                f"a message of {size} bytes for {subject} is over the NATS server's max_payload of {self.max_payload}: "
                "raise max_payload in the server's configuration, or send less"
            )
        try:
            await self._client.publish(subject, body, reply=reply, headers=headers or None)
        except (nats.errors.BadSubjectError, nats.errors.BadHeaderError) as error:
            raise BusError(f"{subject!r} or its headers cannot be sent: {error}") from error
        except (nats.errors.Error, OSError) as error:
            raise LinkLost(f"connection to NATS at {self.address} lost: {error or type(error).__name__}") from error

    async def ask(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> asyncio.Future[Msg | None]:
        """Send a request; the future has its answer, or None if the connection ends first. Cancel it to give up."""
        token = str(next(self._tokens))
        answer: asyncio.Future[Msg | None] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._answers.pop(token, None))
        self._answers[token] = subject, answer
        try:
            await self.send(subject, body, reply=f"{self._inbox}.{token}", headers=headers)
        except BaseException:
            answer.cancel()
            raise
        if self.lost and not answer.done():
            answer.set_result(None)
        return answer

    async def answer(
        self, subject: str, body: bytes, headers: dict[str, str] | None = None, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> Msg:
        """Send a request and wait for its answer.

        Raises NoResponder if no process serves this subject, BusUnavailable on a lost connection or without an answer
        in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                message = await (await self.ask(subject, body, headers))
        except TimeoutError:
            raise BusUnavailable(f"no answer on {subject} from NATS at {self.address} in {timeout_s:g} s") from None
        if message is None:
            raise LinkLost(f"connection to NATS at {self.address} lost while waiting for an answer on {subject}")
        if status_of(message) == "503":
            raise NoResponder(f"nobody answers on {subject}")
        return message

    async def api(self, request: str, body: dict[str, Any], answer_type: type[R]) -> R:
        """Send a request of the JetStream API (`$JS.API.<request>`), durations in nanoseconds.

        Raises ApiRefusal if JetStream refuses, BusUnavailable if it is not there (yet) or the connection ended.
        """
        try:
            message = await self.answer(f"$JS.API.{request}", msgspec.json.encode(body) if body else b"")
        except NoResponder:
            raise BusUnavailable(f"JetStream is not up at {self.address} (is it enabled?)") from None
        raise_refusal(request, message.data)
        return msgspec.json.decode(message.data, type=answer_type)

    async def subscribe(self, subject: str, queue: str = "", backlog_max: int | None = None) -> Inflow:
        """Receive what is published on `subject` from now on; above `backlog_max`, or `BACKLOG_BYTES_MAX` in all, the
        oldest not taken are forgotten.

        Raises LinkLost when the connection ended.
        """
        inflow = Inflow(self, backlog_max)
        self.inflows.add(inflow)
        try:
            inflow.subscription = await self._client.receive(subject, inflow.take, queue)
        except (nats.errors.Error, OSError) as error:
            self.inflows.discard(inflow)
            raise LinkLost(f"connection to NATS at {self.address} lost: {error or type(error).__name__}") from error
        return inflow

    async def close(self) -> None:
        """Send what is still buffered and disconnect; bounded by a timeout."""
        try:
            if self._client.is_connected:
                await self._client.flush(timeout=1)
        except (nats.errors.Error, OSError):
            pass  # the peer is gone or stuck
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._client.close()
        except (TimeoutError, nats.errors.Error, OSError) as error:
            log.debug("closing a NATS connection", address=self.address, error=str(error) or type(error).__name__)
        self.mark_ended()


def raise_refusal(what: str, answer: bytes) -> None:
    """Raise JetStream's refusal in this answer, if any: BusUnavailable if it cannot now, ApiRefusal if it will not."""
    if b'"error"' not in answer:
        return
    error = _maybe_error.decode(answer).error
    if error is None:
        return
    if error.code == _UNAVAILABLE:
        raise BusUnavailable(f"{what}: JetStream answers {error.description!r} (code {error.err_code})")
    raise ApiRefusal(what, error)
