"""Live broadcast of the ranks' output. The log files are complete; the broadcast may drop lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from holdfast.bus import Bus
from holdfast.subjects import log_subject
from holdfast_agent.zygote.wire import Fence, Lines

WAITING_MAX = 256


class LiveLines:
    """Broadcasts lines under the name of the running job. When the queue is full, the oldest lines are dropped."""

    def __init__(self, node: str, job: Callable[[], str | None]) -> None:
        self._node = node
        self._job = job
        self._waiting: asyncio.Queue[tuple[str, Lines, int]] = asyncio.Queue(WAITING_MAX)
        self._fence: Fence | None = None
        self._counted: dict[tuple[int, str], int] = {}
        """Number of lines that each output of the present ranks has had, dropped lines included."""

    def put(self, lines: Lines) -> None:
        if lines.fence != self._fence:
            self._fence, self._counted = lines.fence, {}
        output = lines.rank, lines.stream
        before = self._counted.get(output, 0) + lines.dropped
        self._counted[output] = before + len(lines.lines)
        # Asked now: once they wait, the zygote may have reported the end of these ranks too.
        if (job := self._job()) is None:
            return
        if self._waiting.full():
            self._waiting.get_nowait()
        self._waiting.put_nowait((job, lines, before))

    async def broadcast(self, bus: Bus) -> None:
        while True:
            job, lines, before = await self._waiting.get()
            body = {
                "rank": lines.rank,
                "stream": lines.stream,
                "lines": lines.lines,
                "generation": lines.fence[1],
                "dropped": lines.dropped,
                # A receiver sees from it which are missing, wherever they were lost.
                "before": before,
                "is_open": lines.is_open,
            }
            await bus.broadcast(log_subject(job, lines.rank, self._node), msgspec.json.encode(body))
