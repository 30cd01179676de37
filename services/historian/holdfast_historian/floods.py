"""Limits each node's share of a stream: messages beyond it are removed, and the removal is recorded.

A full stream drops its oldest messages, whichever node published them. So a node that publishes faster than services
read would push out the events of other nodes, and delay all events queued behind its own (docs/security.md).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict, deque
from datetime import datetime, timedelta

import structlog

from holdfast.bus import BusError
from holdfast.bus.backlog import Backlog, remove_published, survey_backlog
from holdfast.bus.nats import NatsBus
from holdfast.bus.survey import survey_stream
from holdfast.clock import Now
from holdfast.daemon.dead_letters import UnhandledMessage, rejection
from holdfast.subjects import FLOODS, STREAMS, StreamSpec

LOOK_EVERY_S = 0.5
WINDOW_S = 600.0
"""Only what was published in this time counts: what services missed for hours, or a restored database receives again,
is no flood."""
UNREAD_MAX = 50_000
"""Unread messages of one node in a stream. A node publishes one in two seconds, and 20,000 measurements at once when it
was cut off."""
SHARE = 8
"""One node's unread messages may fill this part of a stream."""
DEVIATIONS = 3
"""Standard deviations that are subtracted from the estimate of a node's messages: a sample may be too large by
chance."""
REPORT_EVERY = timedelta(minutes=1)

log = structlog.get_logger()


def flooding(backlog: Backlog, messages_max: int, bytes_max: int) -> dict[str, int]:
    """Return the nodes above a limit, and how many unread messages each has at least."""
    hits: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for look in backlog.looks:
        hits[look.node] += 1
        nbytes[look.node] += look.nbytes
    found: dict[str, int] = {}
    for node, count in hits.items():
        scale = (1 - DEVIATIONS / math.sqrt(count)) * backlog.unread / backlog.positions
        if node and (count * scale > messages_max or nbytes[node] * scale > bytes_max):
            found[node] = round(count * scale)
    return found


class FloodGuard:
    """Looks at all streams twice a second, and limits each node's share of them."""

    def __init__(self, bus: NatsBus, now: Now) -> None:
        self._bus = bus
        self._now = now
        self._reported: dict[tuple[str, str], datetime] = {}
        # Ends of the streams, the oldest first.
        self._ends: dict[str, deque[tuple[float, int]]] = defaultdict(deque)

    async def run(self) -> None:
        """Guard until cancelled, whenever the bus answers."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for spec in STREAMS:
                try:
                    await self.limit(spec)
                except BusError as error:
                    log.debug("shares of nodes not limited", stream=spec.name, reason=str(error))

    async def limit(self, spec: StreamSpec) -> None:
        """Remove from one stream what nodes have above their share. Raises BusError, BusUnavailable."""
        bytes_max = spec.bytes_max // SHARE
        link = self._bus.link_now()
        stream = await survey_stream(link, spec.name)
        if stream is None:
            return
        since = self._end_before(spec.name, stream.last_sequence)
        backlog = await survey_backlog(link, stream, since, UNREAD_MAX, bytes_max)
        if backlog is None:
            return
        for node, unread in flooding(backlog, UNREAD_MAX, bytes_max).items():
            removed = await remove_published(link, spec, node)
            # Next time only what comes after this: a sample of positions that are empty now would show little.
            self._ends[spec.name] = deque([(time.monotonic(), stream.last_sequence)])
            log.error("a node floods a stream", node=node, stream=spec.name, unread=unread, removed=removed)
            await self._report(spec, node, f"node {node} floods {spec.name}: {removed} of its messages were removed")

    def _end_before(self, stream: str, end: int) -> int:
        """Return where the stream ended at the beginning of the window; `end`: where it ends now."""
        ends, now = self._ends[stream], time.monotonic()
        if ends and end < ends[-1][1]:
            ends.clear()  # it was made again, or put back
        ends.append((now, end))
        while now - ends[0][0] > WINDOW_S:
            ends.popleft()
        return ends[0][1]

    async def _report(self, spec: StreamSpec, node: str, what: str) -> None:
        now = self._now()
        if now - self._reported.get((spec.name, node), datetime.min.replace(tzinfo=now.tzinfo)) < REPORT_EVERY:
            return
        self._reported[spec.name, node] = now
        unhandled = UnhandledMessage(
            consumer=FLOODS, subject=f"{spec.name}/{node}", body=b"", error=what, message_id=now.isoformat()
        )
        for message in rejection(unhandled, now, self._bus.message_bytes_max):
            await self._bus.publish(message)
