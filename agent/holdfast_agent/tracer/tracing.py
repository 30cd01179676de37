"""Traces of the node's ranks on request.

Requests are under a key of the job (`trace.<job>`), so that none is lost or executed twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import structlog

from holdfast.clock import Now
from holdfast.engines.hang.event_times import to_event_times
from holdfast.events import CollectiveTrace, Event, StackDump
from holdfast.events.parts.devices import NodeActivity
from holdfast.events.parts.traces import NodeLinks, RankTrace
from holdfast.ids import derived_id
from holdfast.node.machine import Machine
from holdfast.orders.trace import TraceOrder
from holdfast.trainer.hooks.flight_recorder import socket_path
from holdfast_agent.devices.meters import NodeMeters
from holdfast_agent.files.directories import Directories
from holdfast_agent.plan.node_state import Crew
from holdfast_agent.tracer.collectives import marks_of, trace_of, with_recorders
from holdfast_agent.tracer.links import SAMPLE_EVERY_S, Ports, links_of
from holdfast_agent.tracer.parts import stacks_in_parts, traces_in_parts
from holdfast_agent.tracer.process_tree import processes_of
from holdfast_agent.tracer.recorder import NoAnswer, recorder_of
from holdfast_agent.tracer.rounds import Round, trace

LINKS_S_MAX = 1.5
ACTIVITY_S_MAX = 1.5

ACTIVITY_S = 0.8
"""Time over which the activity of devices is measured: it lies within the time in which the job makes no progress."""

log = structlog.get_logger(__name__)


class Tracing:
    """The tracer of one node. `crew` returns its ranks, `publish` emits events."""

    def __init__(
        self,
        node: str,
        directories: Directories,
        crew: Callable[[], Crew | None],
        publish: Callable[..., None],
        now: Now,
        meters: NodeMeters | None = None,
    ) -> None:
        """`meters`: of the node's devices; None: they are not measured."""
        self._node = node
        self._meters = meters
        self._directories = directories
        self._crew = crew
        self._publish = publish
        self._now = now
        self._done = ""
        self._machine = Machine()
        self._ports = Ports(self._machine)

    async def follow(self, orders: AsyncIterator[tuple[TraceOrder, Crew]]) -> None:
        """Execute requests, one at a time, until cancelled."""
        async with asyncio.TaskGroup() as group:
            ports = group.create_task(self._watch_ports(), name="ports")
            async for wanted, crew in orders:
                if wanted.id != self._done:
                    self._done = wanted.id
                    await self._serve(wanted, crew)
            ports.cancel()

    async def _watch_ports(self) -> None:
        while True:
            await asyncio.to_thread(self._ports.look)
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def _serve(self, wanted: TraceOrder, crew: Crew) -> None:
        job, fence = wanted.job, crew.order.fence

        async def collectives(rank: int) -> RankTrace:
            ledger = self._directories.ledger(job, fence, rank)
            ring = await asyncio.to_thread(trace_of, ledger, rank, self._node, time.time_ns())
            try:
                recorded, marks = await asyncio.gather(
                    recorder_of(socket_path(ledger), rank), asyncio.to_thread(marks_of, ledger)
                )
                return with_recorders(ring, recorded, marks)
            except NoAnswer as silence:
                log.info("only the ring of collectives is available", rank=rank, reason=str(silence))
                return ring

        pids = dict(crew.pids)
        seen, links, activity = await asyncio.gather(
            trace(self._node, pids, collectives, native=wanted.native), self._links(pids), self._activity(pids)
        )
        self._publish(*self._events(wanted, seen, links, activity))
        log.info("traced", job=job, trace=wanted.id, processes=len(seen.processes), took_s=round(seen.took_s, 3))

    async def _links(self, pids: dict[int, int]) -> NodeLinks:
        def read() -> NodeLinks:
            return links_of(self._node, pids, self._ports.grown(), self._machine.proc)

        try:
            async with asyncio.timeout(LINKS_S_MAX):
                return await asyncio.to_thread(read)
        except (TimeoutError, OSError) as error:
            return NodeLinks(node=self._node, unread=f"the connections were not read: {error or 'no time'}")

    async def _activity(self, pids: dict[int, int]) -> NodeActivity | None:
        if self._meters is None or not self._meters.has_any:
            return None
        try:
            async with asyncio.timeout(ACTIVITY_S_MAX):
                rank_of = {process.pid: process.rank for process in await asyncio.to_thread(processes_of, pids)}
                if await self._meters.measure(pids, rank_of) is None:
                    return None
                await asyncio.sleep(ACTIVITY_S)
                return await self._meters.measure(pids, rank_of)
        except TimeoutError:
            # The stacks shall not wait for it.
            return None

    def _events(self, wanted: TraceOrder, seen: Round, links: NodeLinks, activity: NodeActivity | None) -> list[Event]:
        common: dict[str, Any] = {
            "at": self._now(),
            "source": f"agent/{self._node}",
            "node": self._node,
            "job": wanted.job,
            "generation": wanted.generation,
            "cause": wanted.id,
            "trace": wanted.id,
            "took_s": seen.took_s,
        }
        origin, ranks = to_event_times(seen.traces)
        stacks, traces = stacks_in_parts(seen.processes), traces_in_parts(ranks)

        def own_id(kind: str, number: int) -> str:
            return derived_id(wanted.id, kind, self._node, number)

        dumps: list[Event] = [
            StackDump(
                id=own_id("stack_dump", at),
                **common,
                processes=part,
                part=at,
                parts=len(stacks),
                links=links if at == 1 else None,
                activity=activity if at == 1 else None,
            )
            for at, part in enumerate(stacks, start=1)
        ]
        dumps += [
            CollectiveTrace(
                id=own_id("collective_trace", at), **common, origin=origin, ranks=part, part=at, parts=len(traces)
            )
            for at, part in enumerate(traces, start=1)
        ]
        return dumps
