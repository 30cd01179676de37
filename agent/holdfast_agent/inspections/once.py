"""A single run of every check on the whole machine, for `holdfast inspect`."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from holdfast.node.inspection_report import InspectedDevice
from holdfast.node.machine import Machine
from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.check import Check, Reading, Trouble
from holdfast_agent.inspections.judge import confidence_of, merged
from holdfast_agent.inspections.node_hardware import HardwareFinder, gpus_of
from holdfast_agent.inspections.register import registered
from holdfast_agent.inspections.runner import look
from holdfast_agent.inspections.sources.gpu import GpuInspection
from holdfast_agent.inspections.sources.kernel_log import KernelLog
from holdfast_agent.inspections.threads import Abandonable

COMPARED_AFTER_S = 1.0
"""Wait between two readings of checks that compare counters."""


class NoSuchCheck(ValueError):
    """No check has this name; the message lists all names."""


def inspect(
    policy: InspectionPolicy, only: Collection[str] = (), machine: Machine | None = None
) -> tuple[InspectedDevice, ...]:
    """Return the findings of all checks, or of `only`. Reads the kernel log from boot on. Raises NoSuchCheck."""
    machine = machine or Machine()
    here = (Path.cwd(), Path(tempfile.gettempdir()))

    def paths() -> tuple[Path, ...]:
        return here

    gpus = gpus_of(machine, policy, os.environ)
    finder = HardwareFinder(machine, policy, gpus, paths, lambda: ())
    gpu = GpuInspection(policy, gpus)
    checks = registered(policy, machine, paths, tuple, gpu, KernelLog(machine, finder, from_start=True))
    names = {check.name for check in checks}
    if unknown := sorted(set(only) - names):
        raise NoSuchCheck(f"there is no check {', '.join(unknown)}: there are {', '.join(sorted(names))}")
    try:
        return asyncio.run(_all([check for check in checks if not only or check.name in only]))
    finally:
        gpu.close()


async def _all(checks: Sequence[Check]) -> tuple[InspectedDevice, ...]:
    found = await asyncio.gather(*map(_one, checks))
    return tuple(device for devices in found for device in devices)


async def _one(check: Check) -> list[InspectedDevice]:
    reader = Abandonable(f"inspection-{check.name}", check.read)
    reading = await look(check, reader)
    if check.compares and not reading.absent:
        await asyncio.sleep(COMPARED_AFTER_S)
        reading = await look(check, reader)
    return devices_of(check, reading)


def devices_of(check: Check, reading: Reading) -> list[InspectedDevice]:
    """Convert a reading to report rows: troubles, unreadable devices, healthy ones."""
    found = [_wrong(check, trouble) for trouble in merged(check, reading.troubles).values()]
    found += [
        InspectedDevice(check=check.name, source=check.source, device=device, state="unreadable", detail=why)
        for device, why in reading.unread.items()
    ]
    reported = {device.device for device in found}
    found += [
        InspectedDevice(check=check.name, source=check.source, device=device, state="ok", detail=how)
        for device, how in reading.seen.items()
        if device not in reported
    ]
    if reading.absent:
        found.append(InspectedDevice(check=check.name, source=check.source, state="absent", detail=reading.absent))
    elif not found:
        found.append(InspectedDevice(check=check.name, source=check.source, state="ok"))
    return found


def _wrong(check: Check, trouble: Trouble) -> InspectedDevice:
    times = f", {len(trouble.lines)} times" if len(trouble.lines) > 1 else ""
    return InspectedDevice(
        check=check.name,
        source=check.source,
        device=trouble.device,
        state=confidence_of(check, trouble),
        detail=trouble.detail + times,
        symptom=str(check.symptom if trouble.symptom is None else trouble.symptom),
        lines=trouble.lines[-3:],
    )
