"""Attribution of kernel log lines to a node, where several nodes share a machine. Pure.

A line belongs to the node whose device, process or namespace it names. A line that names none concerns the machine: all
nodes on it fail together. Lines about other nodes are ignored.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.engines.hardware.kernel_lines import KernelTrouble
from holdfast_agent.inspections.check import Scope


class NodeHardware(msgspec.Struct, frozen=True, kw_only=True):
    """A node's hardware and processes."""

    gpus: frozenset[str] = frozenset()
    """PCI addresses."""
    gpus_are_own: bool = False
    """True if the machine's other GPUs are other nodes'."""
    interfaces: frozenset[str] = frozenset()
    """Interfaces of the node's network namespace, with InfiniBand devices."""
    nics: frozenset[str] = frozenset()
    """PCI addresses of the interfaces."""
    disks: frozenset[str] = frozenset()
    """Block devices below its files, with the disks below them."""
    pids: frozenset[int] = frozenset()
    """Processes of the node's ranks and their descendants."""
    sees_pids: bool = True
    """True if `pids` are in the kernel's numbers."""
    cgroup: str = ""
    """Memory cgroup of the node; "" for the root."""


class Attribution(NamedTuple):
    """Scope of a line. `is_certain`: it is about something that the node is known to have; else it is only a hint."""

    scope: Scope
    is_certain: bool = True


def belongs(trouble: KernelTrouble, holdings: NodeHardware) -> Attribution | None:
    """Return the scope of a line; None if it belongs to another node."""
    match trouble.about:
        case "gpu":
            return _gpu(trouble.pci, holdings)
        case "nic":
            return _nic(trouble, holdings)
        case "pci":
            if trouble.pci in holdings.nics:
                return Attribution("node")
            return _gpu(trouble.pci, holdings)
        case "disk":
            # The machine's disks and their faults are shared.
            return Attribution("host", _is_among(trouble.block, holdings.disks))
        case "process":
            return _process(trouble, holdings)
        case _:
            return Attribution("host")


def _gpu(pci: str, holdings: NodeHardware) -> Attribution | None:
    if holdings.gpus_are_own:
        return Attribution("node") if pci in holdings.gpus else None
    # GPUs are undivided: any node may use any of them.
    return Attribution("host", pci in holdings.gpus)


def _nic(trouble: KernelTrouble, holdings: NodeHardware) -> Attribution | None:
    if trouble.pci and holdings.nics and trouble.pci not in holdings.nics:
        return None
    # The ports of a card share its address but may be in different namespaces.
    if trouble.interface:
        return Attribution("node") if trouble.interface in holdings.interfaces else None
    return Attribution("node") if trouble.pci in holdings.nics else None


def _process(trouble: KernelTrouble, holdings: NodeHardware) -> Attribution | None:
    if holdings.sees_pids:
        if trouble.pid in holdings.pids:
            return Attribution("node")
    elif holdings.cgroup and (trouble.memcg + "/").startswith(holdings.cgroup.rstrip("/") + "/"):
        return Attribution("node")
    # Another node's process. A machine short of memory may soon affect this node too.
    return Attribution("host", False) if trouble.is_global else None


def _is_among(block: str, disks: frozenset[str]) -> bool:
    """Return True if the controller `nvme0` has the disk `nvme0n1`."""
    return any(disk == block or disk.startswith(block + "n") for disk in disks)
