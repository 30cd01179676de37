"""The machine's processors and GPUs, read from sysfs: which of them are near each other."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from holdfast.node.machine import Machine, entries, number, text
from holdfast.pci import pci_address
from holdfast_agent.plan.devices.binding import Gpu, Processors

_VENDORS = {"0x10de": ("0x03",), "0x1002": ("0x0380", "0x12")}
"""NVIDIA's and AMD's, and classes of their devices that compute: a display of AMD's (0x0300) is no accelerator."""


def read_processors(machine: Machine, allowed: Collection[int] | None = None) -> Processors:
    """Return what the machine has. `allowed`: processors that may be used; None: those of this process.

    Raises OSError or ValueError: the kernel does not report them.
    """
    of_node = {
        int(folder.name.removeprefix("node")): cpus_of((folder / "cpulist").read_text())
        for folder in entries(machine.sys / "devices/system/node")
        if folder.name.removeprefix("node").isdecimal()
    }
    folders = {cpu: machine.sys / f"devices/system/cpu/cpu{cpu}" for cpus in of_node.values() for cpu in cpus}
    return Processors(
        gpus=_gpus(machine),
        of_node=of_node,
        core={cpu: _lowest(folder / "topology/thread_siblings_list", cpu) for cpu, folder in folders.items()},
        cache={cpu: _cache(folder, cpu) for cpu, folder in folders.items()},
        package={cpu: number(folder / "topology/physical_package_id") or 0 for cpu, folder in folders.items()},
        allowed=frozenset(os.sched_getaffinity(0) if allowed is None else allowed),
    )


def cpus_of(text: str) -> frozenset[int]:
    """Return the numbers of a list such as `0-3,8`. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _gpus(machine: Machine) -> tuple[Gpu, ...]:
    shown = {pci_address(folder.name): folder for folder in entries(machine.proc / "driver/nvidia/gpus")}
    found = []
    for device in entries(machine.sys / "bus/pci/devices"):
        classes = _VENDORS.get(text(device / "vendor") or "")
        if classes is None or not (text(device / "class") or "").startswith(classes):
            continue
        driver = shown.get(pci_address(device.name))
        # A container may have some of the machine's GPUs, and the driver lists those.
        if driver is not None or not shown:
            # A machine with one NUMA node may have -1 there.
            node = max(number(device / "numa_node") or 0, 0)
            found.append(Gpu(uuid=_uuid(driver) if driver is not None else "", numa_node=node))
    return tuple(found)


def _uuid(driver: Path) -> str:
    for line in (text(driver / "information") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "GPU UUID":
            return value.strip()
    return ""


def _lowest(path: Path, cpu: int) -> int:
    listed = text(path)
    return min(cpus_of(listed), default=cpu) if listed else cpu


def _cache(folder: Path, cpu: int) -> int:
    """Return the lowest number of the processors that share the last level of cache for data."""
    levels = [
        (number(index / "level") or 0, index)
        for index in entries(folder / "cache")
        if text(index / "type") in ("Unified", "Data")
    ]
    return _lowest(max(levels)[1] / "shared_cpu_list", cpu) if levels else cpu
