"""The node's part of its machine: GPUs, network, disks, processes."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from holdfast.node.machine import Machine, entries, text
from holdfast.node.proc.mount_table import mount_of, mount_table
from holdfast.pci import pci_address
from holdfast.settings.inspections import InspectionPolicy, listed
from holdfast_agent.inspections.attribution import NodeHardware
from holdfast_agent.inspections.sources.disks import disks_below
from holdfast_agent.inspections.sources.mounts import Paths
from holdfast_agent.inspections.sources.pressure import memory_cgroup
from holdfast_agent.plan.devices.visible_gpus import visible_gpus

log = structlog.get_logger(__name__)

_NVIDIA, _AMD = ("0x10de", ("0x03",)), ("0x1002", ("0x0380", "0x12"))
"""Vendors, and classes of their devices that compute: a display of AMD's (0x0300) is no accelerator."""
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The machine's initial PID namespace, as `/proc/self/ns/pid` shows it: its inode number is fixed in the kernel."""

FAMILIES_EVERY_S = 10.0
"""Interval at which the descendants of ranks are noted."""
REMEMBERED_S = 60.0
"""Time for which a process that has ended still counts as the node's."""
STARTED_MAX = 64
"""Maximum number of crews that are remembered from one reading of the kernel's log to the next."""


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """PCI addresses of GPUs, read when the agent starts."""

    of_machine: frozenset[str]
    own: frozenset[str]
    """The node's; may be none."""
    are_divided: bool
    """True if GPUs outside of `own` are another node's."""
    are_amds: bool = False


def gpus_of(machine: Machine, policy: InspectionPolicy, environ: Mapping[str, str]) -> Gpus:
    """Return the GPUs. The first of these that is given decides which are the node's: `[inspections] gpus`;
    `CUDA_VISIBLE_DEVICES` (indexes in bus order, or UUIDs); the driver's list, which a container may limit. A variable
    that names what the driver's files do not resolve, such as a MIG device, does not decide: all alerts count then.
    AMD's GPUs count where there are none of NVIDIA's; `HIP_VISIBLE_DEVICES` is then read, too.
    """
    present = _present(machine, *_NVIDIA)
    are_amds = not present and bool(present := _present(machine, *_AMD))
    named = frozenset(pci_address(address) for address in listed(policy.gpus))
    are_divided = bool(named)
    name = "HIP_VISIBLE_DEVICES" if are_amds and "CUDA_VISIBLE_DEVICES" not in environ else "CUDA_VISIBLE_DEVICES"
    if not named and (variable := environ.get(name)) is not None:
        uuids = _uuids(machine)
        visible = visible_gpus(variable, [uuids.get(address, "") for address in present])
        if visible.unknown:
            log.warning(f"{name} names a device that the driver does not list", device=visible.unknown)
        else:
            named, are_divided = frozenset(present[index] for index in visible.indexes), True
    shown = frozenset(pci_address(folder.name) for folder in entries(machine.proc / "driver/nvidia/gpus"))
    if not are_divided and shown < frozenset(present) and shown:
        named, are_divided = shown, True
    own = named if are_divided else frozenset(present)
    return Gpus(of_machine=frozenset(present), own=own, are_divided=are_divided, are_amds=are_amds)


def _present(machine: Machine, vendor: str, classes: tuple[str, ...]) -> list[str]:
    """Return the PCI addresses of a vendor's GPUs."""
    return sorted(
        pci_address(device.name)
        for device in entries(machine.sys / "bus/pci/devices")
        if text(device / "vendor") == vendor and (text(device / "class") or "").startswith(classes)
    )


class HardwareFinder:
    """Finder of the node's hardware. `paths()` returns where the node writes, `ranks()` the pids of its ranks."""

    def __init__(
        self,
        machine: Machine,
        policy: InspectionPolicy,
        gpus: Gpus,
        paths: Paths,
        ranks: Callable[[], Collection[int]],
    ) -> None:
        self._machine = machine
        self._interfaces = frozenset(listed(policy.interfaces))
        self._gpus = gpus
        self._paths = paths
        self._ranks = ranks
        self._seen_at: dict[int, float] = {}
        self._families_at = 0.0
        self._started: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=STARTED_MAX)

    def note_started(self, pids: Iterable[int]) -> None:
        """Remember ranks that have just started, from any thread: they may end before the next reading."""
        self._started.append((time.monotonic(), tuple(pids)))

    def note_processes(self) -> None:
        """Remember the ranks' processes: a process is gone by the time the kernel's kill message is read."""
        now, ranks = time.monotonic(), self._ranks()
        while self._started:
            at, pids = self._started.popleft()
            self._seen_at |= dict.fromkeys(pids, at)
        self._seen_at |= dict.fromkeys(ranks, now)
        if now - self._families_at >= FAMILIES_EVERY_S:
            self._families_at = now
            self._seen_at |= dict.fromkeys(family(self._machine, ranks), now)
            self._seen_at = {pid: at for pid, at in self._seen_at.items() if now - at < REMEMBERED_S}

    def find(self) -> NodeHardware:
        """Return the present hardware, with processes of the last minute."""
        nets = {entry.name: _pci_of(entry) for entry in entries(self._machine.sys / "class/net") if entry.name != "lo"}
        cards = {entry.name: _pci_of(entry) for entry in entries(self._machine.sys / "class/infiniband")}
        if self._interfaces:
            nets = {name: pci for name, pci in nets.items() if name in self._interfaces}
            cards = {name: pci for name, pci in cards.items() if name in self._interfaces}
        table = mount_table(self._machine) or {}
        mounts = [mount for path in self._paths() if (mount := mount_of(path, table)) is not None]
        disks = (disks_below(self._machine, mount.number) for mount in mounts if not mount.is_remote)
        return NodeHardware(
            gpus=self._gpus.own,
            gpus_are_own=self._gpus.are_divided,
            interfaces=frozenset((*nets, *cards)),
            nics=frozenset(pci for pci in (*nets.values(), *cards.values()) if pci),
            disks=frozenset().union(*disks),
            pids=family(self._machine, self._ranks()).union(self._seen_at),
            sees_pids=_namespace(self._machine) == _FIRST_PID_NAMESPACE,
            cgroup=memory_cgroup(self._machine),
        )


def family(machine: Machine, pids: Collection[int]) -> frozenset[int]:
    """Return the processes and all their descendants."""
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid in found:
            continue
        found.add(pid)
        for task in entries(machine.proc / str(pid) / "task"):
            waiting += map(int, (text(task / "children") or "").split())
    return frozenset(found)


def _pci_of(entry: Path) -> str:
    try:
        return pci_address((entry / "device").resolve(strict=True).name)
    except (OSError, ValueError):
        return ""


def _uuids(machine: Machine) -> dict[str, str]:
    """Return the UUID of each GPU by PCI address, read from the driver's /proc files."""
    found: dict[str, str] = {}
    for folder in entries(machine.proc / "driver/nvidia/gpus"):
        for line in (text(folder / "information") or "").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "GPU UUID":
                found[pci_address(folder.name)] = value.strip()
    return found


def _namespace(machine: Machine) -> str:
    try:
        return os.readlink(machine.proc / "self/ns/pid")
    except OSError:
        return ""
