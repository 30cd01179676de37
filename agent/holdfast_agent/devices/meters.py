"""The activity of a node's devices and RDMA ports, on request. A library that hangs or crashes only leaves a gap."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping

import msgspec
import structlog

from holdfast.events.parts.devices import DeviceActivity, NodeActivity, PortActivity
from holdfast.node.machine import Machine
from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.devices.asked_process import AskedProcess, LibraryHangs, Starved
from holdfast_agent.devices.device_reading import (
    DeviceReading,
    MeterReport,
    activity_of,
    lacks,
    of_rank,
    peak_of,
    port_peak_of,
    together,
)
from holdfast_agent.devices.rdma_ports import RdmaPorts
from holdfast_agent.inspections.node_hardware import Gpus, gpus_of

ANSWER_S = 2.0
"""Time for which a caller waits: an answer takes milliseconds, or 40 ms per GPU where NVML counts PCIe by itself."""

HANGS_S = 10.0
"""Time after which a process that has not answered is given up."""

RESTS_S = 60.0
"""Time for which a library that gave no answer is left alone."""

ABSENT_S = 600.0
"""Time after which a library or host engine that is not there is looked for again."""

log = structlog.get_logger(__name__)


def _process(module: str, *arguments: str) -> AskedProcess:
    return AskedProcess((sys.executable, "-P", "-m", f"holdfast_agent.devices.{module}", *arguments), module)


class Meter:
    """One library, asked in its own process: what its devices did since the last answer."""

    def __init__(self, process: AskedProcess, clock: Callable[[], float] = time.monotonic) -> None:
        self._process = process
        self._clock = clock
        self._before: dict[str, DeviceReading] = {}
        self._read_at = 0.0
        self._rests_until = 0.0

    def read(self, rank_of: Mapping[int, int]) -> dict[str, DeviceActivity]:
        """Return the activity of each device. `rank_of`: process -> rank."""
        if self._clock() < self._rests_until:
            return {}
        try:
            report = msgspec.json.decode(self._process.line(HANGS_S), type=MeterReport)
        except (LibraryHangs, Starved, OSError, msgspec.DecodeError) as error:
            return self._rest(RESTS_S, str(error) or "it got no processor")
        if report.failed:
            self.close()
            return self._rest(ABSENT_S if report.failed == "library" else RESTS_S, report.why)
        now, before = self._clock(), self._before
        passed_s, self._read_at = now - self._read_at, now
        self._before = {reading.device: reading for reading in report.devices}
        return {
            name: of_rank(activity_of(reading, before.get(name), passed_s), reading.pids, rank_of)
            for name, reading in self._before.items()
        }

    def close(self) -> None:
        self._process.close()
        self._before = {}

    def _rest(self, rests_s: float, why: str) -> dict[str, DeviceActivity]:
        log.info("no activity of devices", reason=why, again_in_s=rests_s)
        self._before, self._rests_until = {}, self._clock() + rests_s
        return {}


class NodeMeters:
    """All libraries of a node, and its RDMA ports; the highest activity under the present ranks."""

    def __init__(
        self,
        gpus: Gpus,
        machine: Machine,
        dcgm_address: str = "",
        meters: tuple[Meter, ...] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`dcgm_address`: of its host engine; "": DCGM is not asked. `meters`: others in the libraries' place."""
        self._gpus = gpus
        self._meters = _meters_of(gpus, dcgm_address) if meters is None else meters
        self._ports = RdmaPorts(machine)
        self._clock = clock
        self._measured_at = clock()
        self._lock = asyncio.Lock()
        self._running: asyncio.Future[NodeActivity] | None = None
        self._ranks: dict[int, int] = {}
        self._peaks: dict[str, DeviceActivity] = {}
        self._port_peaks: dict[str, PortActivity] = {}

    async def measure(self, ranks: Mapping[int, int], rank_of: Mapping[int, int]) -> NodeActivity | None:
        """Return the activity since the last call. `ranks`: rank -> pid; `rank_of`: the same of all their processes.

        None: a library did not answer in time, and is still waited for.
        """
        async with self._lock:
            if self._running is None:
                work = asyncio.to_thread(self._measure, dict(ranks), dict(rank_of))
                self._running = asyncio.ensure_future(work)
            done, _ = await asyncio.wait({self._running}, timeout=ANSWER_S)
            if not done:
                return None
            running, self._running = self._running, None
            return running.result()

    @property
    def has_any(self) -> bool:
        """False if the node has neither GPUs nor RDMA ports: there is nothing to measure."""
        return bool(self._gpus.own) or self._ports.has_any

    def close(self) -> None:
        """End the processes that ask, so that nothing waits for them. They are started again when needed."""
        for meter in self._meters:
            meter.close()

    def _measure(self, ranks: dict[int, int], rank_of: dict[int, int]) -> NodeActivity:
        if ranks != self._ranks:
            self._ranks, self._peaks, self._port_peaks = ranks, {}, {}
        passed_s = self._clock() - self._measured_at
        self._measured_at += passed_s
        ports = self._ports.since_last(passed_s)
        devices = self._devices(rank_of)
        before, ports_before = dict(self._peaks), dict(self._port_peaks)
        self._peaks |= {name: peak_of(before.get(name), now) for name, now in devices.items()}
        self._port_peaks |= {now.port: port_peak_of(ports_before.get(now.port), now) for now in ports}
        return NodeActivity(
            devices=tuple(devices.values()),
            ports=ports,
            interval_s=passed_s,
            peak_devices=tuple(before.values()),
            peak_ports=tuple(ports_before.values()),
        )

    def _devices(self, rank_of: dict[int, int]) -> dict[str, DeviceActivity]:
        if not self._gpus.own or not self._meters:
            return {}
        first, *others = self._meters
        found = self._own(first.read(rank_of))
        for meter in others:
            # DCGM adds what NVML lacks, and is not asked where NVML measures tensor cores.
            if not found or lacks(found.values(), "tensor_share"):
                more = self._own(meter.read(rank_of))
                found = {**more, **{name: together(now, more.get(name, now)) for name, now in found.items()}}
        return found

    def _own(self, found: Mapping[str, DeviceActivity]) -> dict[str, DeviceActivity]:
        return {
            name: activity for name, activity in found.items() if name in self._gpus.own or not self._gpus.are_divided
        }


def _meters_of(gpus: Gpus, dcgm_address: str) -> tuple[Meter, ...]:
    if gpus.are_amds:
        return (Meter(_process("amd_meter")),)
    dcgm = (Meter(_process("dcgm_meter", dcgm_address)),) if dcgm_address else ()
    return (Meter(_process("nvml_meter")), *dcgm)


def meters_of_node(inspections: InspectionPolicy, telemetry: TelemetryPolicy) -> NodeMeters | None:
    """Return the meters of this machine; None if devices are not measured."""
    if not telemetry.devices:
        return None
    machine = Machine()
    return NodeMeters(gpus_of(machine, inspections, os.environ), machine, telemetry.dcgm)
