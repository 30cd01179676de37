"""Whose a line of the kernel's log is, where several nodes share a machine. Pure.

It is the node's whose device, process or namespace it names. What names none concerns the machine: all nodes on it fail
together. What names another node's is nobody's business here.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.engines.hardware.kernel_lines import KernelTrouble
from holdfast_agent.inspections.check import Scope


class NodeHardware(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has.

    `gpus` are PCI addresses; `gpus_are_own`: somebody said so, other GPUs of the machine are other nodes'. `interfaces`
    are those of its network namespace, InfiniBand devices included, `nics` their PCI addresses. `disks` are block
    devices under its files, with the disks below them. `pids` are its ranks and what they started, as the kernel
    numbers them if `sees_pids`; `cgroup` is its memory cgroup, "" if that is everybody's.
    """

    gpus: frozenset[str] = frozenset()
    gpus_are_own: bool = False
    interfaces: frozenset[str] = frozenset()
    nics: frozenset[str] = frozenset()
    disks: frozenset[str] = frozenset()
    pids: frozenset[int] = frozenset()
    sees_pids: bool = True
    cgroup: str = ""


class Attribution(NamedTuple):
    """`is_certain`: the line is about something that the node is known to have; else it is no more than a hint."""

    scope: Scope
    is_certain: bool = True


def belongs(trouble: KernelTrouble, holdings: NodeHardware) -> Attribution | None:
    """Whose it is; None: another node's."""
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
            # The machine's disks are shared, and with them their faults.
            return Attribution("host", _is_among(trouble.block, holdings.disks))
        case "process":
            return _process(trouble, holdings)
        case _:
            return Attribution("host")


def _gpu(pci: str, holdings: NodeHardware) -> Attribution | None:
    if holdings.gpus_are_own:
        return Attribution("node") if pci in holdings.gpus else None
    # Nobody has divided the GPUs: any node may use any of them.
    return Attribution("host", pci in holdings.gpus)


def _nic(trouble: KernelTrouble, holdings: NodeHardware) -> Attribution | None:
    if trouble.pci and holdings.nics and trouble.pci not in holdings.nics:
        return None
    # The ports of one card share its address, and may be in different namespaces.
    if trouble.interface:
        return Attribution("node") if trouble.interface in holdings.interfaces else None
    return Attribution("node") if trouble.pci in holdings.nics else None


def _process(trouble: KernelTrouble, holdings: NodeHardware) -> Attribution | None:
    if holdings.sees_pids:
        if trouble.pid in holdings.pids:
            return Attribution("node")
    elif holdings.cgroup and (trouble.memcg + "/").startswith(holdings.cgroup.rstrip("/") + "/"):
        return Attribution("node")
    # Not one of its own. If the machine as a whole is short, that may concern it next.
    return Attribution("host", False) if trouble.is_global else None


def _is_among(block: str, disks: frozenset[str]) -> bool:
    """`nvme0`, the controller, has the disk `nvme0n1`."""
    return any(disk == block or disk.startswith(block + "n") for disk in disks)
