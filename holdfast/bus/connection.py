"""A lasting connection to NATS: one `Link` after another, until the bus is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime

import structlog

from holdfast.bus import BusError, BusUnavailable
from holdfast.bus.link import Inflow, Link, LinkLost, address_of
from holdfast.bus.nats_py import Msg
from holdfast.bus.streams import StreamMissing, ensure_streams
from holdfast.clock import Now
from holdfast.settings.addresses import Address, current
from holdfast.settings.network import NetworkPolicy

RETRY_MIN_S = 0.05
RETRY_MAX_S = 0.25
STUCK_POLL_S = 2.0

DEFAULT_MAX_PAYLOAD = 1 << 20

log = structlog.get_logger(__name__)


class ConnectionClosed(BusUnavailable):
    """The bus was closed."""


class Connection:
    """A link, opened again whenever it is lost. With `makes_streams`, streams are made each time, since a restarted
    server has lost those in memory.
    """

    def __init__(self, url: Address, name: str, network: NetworkPolicy, now: Now, *, makes_streams: bool) -> None:
        self._makes_streams = makes_streams
        self._url = url
        self._name = name
        self._network = network
        self._now = now
        self._since: datetime | None = None
        self._link: Link | None = None
        self._next: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._keeper: asyncio.Task[None] | None = None

    async def start(self, timeout_s: float | None) -> None:
        """Connect for the first time.

        Raises BusUnavailable without a usable server within `timeout_s`, BusError if it refuses (credentials, streams).
        """
        self._keeper = asyncio.create_task(self._keep_up(), name=f"nats connection of {self._name}")
        try:
            async with asyncio.timeout(timeout_s):
                await self.link_up()
        except TimeoutError:
            await self.close()
            raise BusUnavailable(
                f"no usable NATS server at {address_of(current(self._url))} within {timeout_s:g} s: "
                "is it running, with JetStream?"
            ) from None
        except BaseException:
            await self.close()
            raise

    @property
    def since(self) -> datetime | None:
        """Start of the present link; None while there is none."""
        return None if self._link is None or self._link.lost else self._since

    @property
    def message_bytes_max(self) -> int:
        """The size that the server allowed on the newest link; NATS's default before any."""
        return DEFAULT_MAX_PAYLOAD if self._link is None else self._link.max_payload

    def link_now(self) -> Link:
        """Return the present link; raises BusUnavailable if there is none."""
        if self._link is not None and not self._link.lost:
            return self._link
        if self._next.done() and (error := self._next.exception()) is not None:
            raise BusUnavailable(f"the bus is closed: {error or type(error).__name__}") from error
        raise BusUnavailable(f"not connected to NATS at {address_of(current(self._url))}")

    async def link_up(self) -> Link:
        """Return the present link or wait for the next one; raises ConnectionClosed if there will be none."""
        return await asyncio.shield(self._next)

    async def close(self) -> None:
        """Flush what was sent and disconnect for good."""
        if self._keeper is not None and not self._keeper.done():
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._keeper is not None and not self._keeper.cancelled():
            # Waiting tasks have their exception; asyncio complains about one that is never retrieved.
            self._keeper.exception()

    async def arriving(
        self,
        attach: Callable[[Link], Awaitable[Inflow]],
        silence_s: float | None = None,
        *,
        expects_silence: bool = False,
    ) -> AsyncGenerator[Msg, None]:
        """Yield the messages of a subscription that is renewed on every link and after `silence_s` of silence.

        Messages that were under way when a link ended are not kept. Ends when the connection is closed. Raises BusError
        when the server refuses the subscription for good.
        """
        while True:
            try:
                inflow = await self._attached(attach)
            except ConnectionClosed:
                return
            try:
                while True:
                    try:
                        message = await inflow.next(silence_s)
                    except LinkLost:
                        break
                    except TimeoutError:
                        if expects_silence:
                            break
                        log.warning("a subscription fell silent; renewing it", name=self._name)
                        # Messages were missed, as after a loss of the connection.
                        self._since = self._now()
                        break
                    yield message
            finally:
                await inflow.close()

    async def _attached(self, attach: Callable[[Link], Awaitable[Inflow]]) -> Inflow:
        pause = _Backoff()
        while True:
            link = await self.link_up()
            try:
                return await attach(link)
            except StreamMissing as missing:
                pause.log_reason(missing)
                await self.mend(link)
            except BusUnavailable as error:
                pause.log_reason(error)
            await pause.wait()

    async def mend(self, link: Link) -> None:
        """Make missing streams again, if this process makes streams."""
        if not self._makes_streams:
            return
        try:
            await ensure_streams(link)
        except BusUnavailable as error:
            log.warning("streams are missing and cannot be made now", reason=str(error))

    async def _keep_up(self) -> None:
        try:
            opened_before = False
            while True:
                link = await self._open_link(forgive=opened_before)
                opened_before = True
                self._link, self._since = link, self._now()
                self._next.set_result(link)
                log.info("connected to NATS", address=link.address)
                try:
                    await _until_lost(link)
                finally:
                    self._link, self._next = None, asyncio.get_running_loop().create_future()
                    await link.close()
                log.warning("connection to NATS lost; reconnecting", address=link.address)
        except asyncio.CancelledError:
            self._end(ConnectionClosed("closed"))
            raise
        except BaseException as error:
            self._end(error)
            raise

    def _end(self, error: BaseException) -> None:
        self._next.set_exception(error)
        # There may be no waiting task, and asyncio complains about an exception that is never retrieved.
        self._next.exception()

    async def _open_link(self, *, forgive: bool) -> Link:
        pause = _Backoff()
        while True:
            _end_if_cancelled()
            link: Link | None = None
            try:
                link = await Link.open(current(self._url), self._name, self._network)
                if self._makes_streams:
                    await ensure_streams(link)
                _end_if_cancelled()
            except BaseException as error:
                if link is not None:
                    await link.close()
                if not isinstance(error, BusUnavailable) and not (forgive and isinstance(error, BusError)):
                    raise
                pause.log_reason(error)
            else:
                return link
            await pause.wait()


class _Backoff:
    """Short pauses that grow to a limit; each new reason is logged once."""

    def __init__(self) -> None:
        self._pause_s = RETRY_MIN_S
        self._warned = ""

    def log_reason(self, reason: Exception) -> None:
        if str(reason) != self._warned:
            self._warned = str(reason)
            log.warning("waiting for NATS", reason=self._warned)

    async def wait(self) -> None:
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, RETRY_MAX_S)


def _end_if_cancelled() -> None:
    """Raise CancelledError if this task was cancelled: nats-py, and Python 3.11 under it, swallow some cancellations
    that arrive while a connection is opened or closed, and the task would then never end.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _until_lost(link: Link) -> None:
    while not link.lost:
        try:
            async with asyncio.timeout(STUCK_POLL_S):
                await link.ended.wait()
        except TimeoutError:
            continue  # nats-py can be stuck flushing to a silent peer without an error: check `lost` too
    link.mark_ended()
