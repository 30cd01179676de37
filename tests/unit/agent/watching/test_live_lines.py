"""What ranks print, on its way to those who follow the job."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.bus.in_memory import MemoryBroker
from holdfast.subjects import log_subject
from holdfast_agent.watching.live_lines import LiveLines
from holdfast_agent.zygote.wire import Lines


async def test_the_last_line_comes_though_the_job_has_ended_by_then() -> None:
    broker = MemoryBroker()
    agent, reader = broker.client("agent"), broker.client("reader")
    jobs = ["job"]
    live = LiveLines("n0", lambda: jobs[-1] if jobs else None)
    heard = aiter(reader.listen(log_subject("job", "*", "*")))
    first = asyncio.ensure_future(anext(heard))
    await asyncio.sleep(0)
    live.put(Lines(fence=(1, 1), rank=0, stream="out", lines=("saved",)))
    jobs.clear()
    live.put(Lines(fence=(1, 1), rank=0, stream="out", lines=("of no job",)))
    broadcasting = asyncio.ensure_future(live.broadcast(agent))
    async with asyncio.timeout(10):
        subject, body = await first
    broadcasting.cancel()
    assert subject == log_subject("job", 0, "n0")
    assert msgspec.json.decode(body)["lines"] == ["saved"]
