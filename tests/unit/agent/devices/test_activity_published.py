"""Where the activity of devices goes: into the telemetry of ranks, and into the answer to a trace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from holdfast.clock import system_now
from holdfast.events import Event, StackDump, TelemetryMeasured
from holdfast.events.parts.devices import DeviceActivity, PortActivity
from holdfast.fresh_ids import uuid7
from holdfast.node.machine import Machine
from holdfast.orders.trace import TraceOrder
from holdfast_agent.devices.meters import Meter, NodeMeters
from holdfast_agent.files.directories import Directories
from holdfast_agent.plan.node_state import Crew
from holdfast_agent.tracer import tracing
from holdfast_agent.tracer.tracing import Tracing
from holdfast_agent.watching.rank_telemetry import Telemetry
from tests.unit.agent.devices.test_device_reading import BOTH, FIRST, NONE, Gpus, Library, ports_at, report

ME = {0: os.getpid()}


def crew_of(pids: dict[int, int]) -> Crew:
    order = SimpleNamespace(job="gpt", generation=3, cause="0", fence=None)
    return cast("Crew", SimpleNamespace(order=order, trains=True, stepped=True, pids=pids))


def meters_of(library: Library, machine: Path, gpus: Gpus) -> NodeMeters:
    return NodeMeters(gpus, Machine(sys=machine), meters=(Meter(library),))


ALL = Gpus(of_machine=BOTH, own=BOTH, are_divided=False)


async def first_telemetry(meters: NodeMeters) -> TelemetryMeasured:
    published: asyncio.Queue[TelemetryMeasured] = asyncio.Queue()
    crew = crew_of(ME)
    telemetry = Telemetry("n1", 0.01, lambda: crew, dict, published.put_nowait, system_now, meters)
    running = asyncio.create_task(telemetry.run())
    try:
        return await asyncio.wait_for(published.get(), 30)
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_telemetry_has_devices_and_ports(tmp_path: Path) -> None:
    ports_at(tmp_path, {"mlx5_0:1": (100, 100)})
    library = Library(report(busy_share=0.5, tensor_share=0.25).replace("11", str(os.getpid())))
    event = asyncio.run(first_telemetry(meters_of(library, tmp_path, ALL)))
    assert [rank.rank for rank in event.ranks] == [0]
    assert event.devices == (DeviceActivity(device=FIRST, rank=0, busy_share=0.5, tensor_share=0.25),)
    assert event.ports == (PortActivity(port="mlx5_0:1", sent_bytes_per_s=0.0, received_bytes_per_s=0.0),)


def test_a_library_without_an_answer_holds_no_telemetry_up(tmp_path: Path) -> None:
    event = asyncio.run(first_telemetry(meters_of(Library(), tmp_path, ALL)))
    assert [rank.rank for rank in event.ranks] == [0] and event.devices == () and event.ports == ()


async def dumped(meters: NodeMeters | None, tmp_path: Path) -> StackDump:
    published: list[Event] = []
    traced = Tracing(
        "n1", Directories(tmp_path), lambda: None, lambda *events: published.extend(events), system_now, meters
    )
    wanted = TraceOrder(id=uuid7(), job="gpt", generation=3, until=system_now() + timedelta(seconds=60))

    async def orders() -> AsyncIterator[tuple[TraceOrder, Crew]]:
        yield wanted, crew_of({})

    await traced.follow(orders())
    return next(event for event in published if isinstance(event, StackDump))


def test_a_trace_measures_devices_while_the_job_stands_still(tmp_path: Path) -> None:
    tracing_s, tracing.ACTIVITY_S = tracing.ACTIVITY_S, 0.01
    try:
        library = Library(report(busy_share=0.0))
        activity = asyncio.run(dumped(meters_of(library, tmp_path, ALL), tmp_path)).activity
        assert activity is not None and [it.busy_share for it in activity.devices] == [0.0]
        # Twice: the second time tells what happened since the first.
        assert library.asked == 2
    finally:
        tracing.ACTIVITY_S = tracing_s


def test_a_node_without_gpus_and_ports_is_traced_as_before(tmp_path: Path) -> None:
    library = Library(report(busy_share=0.0))
    assert asyncio.run(dumped(meters_of(library, tmp_path, NONE), tmp_path)).activity is None
    assert asyncio.run(dumped(None, tmp_path)).activity is None and library.asked == 0
