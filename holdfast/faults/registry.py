"""All faults and all kinds of steps."""

from __future__ import annotations

from holdfast.faults.fault import Fault, FaultRefused
from holdfast.faults.helpers import Helper
from holdfast.faults.kinds import (
    confining,
    disk,
    endpoints,
    failing_disk,
    kernel_log,
    load,
    network,
    numbers,
    processes,
)

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for family in (processes, confining, load, numbers, disk, failing_disk, network, kernel_log, endpoints)
    for fault in family.FAULTS
}

AnyStep = (
    processes.Signal
    | processes.LastWords
    | processes.Freeze
    | processes.LoseNode
    | processes.KillContainer
    | confining.Confine
    | confining.OnePageMore
    | disk.Overlay
    | disk.Empty
    | disk.Unmount
    | failing_disk.FailingDisk
    | network.LinkDown
    | network.LimitRate
    | network.DropTraffic
    | kernel_log.KernelLines
    | numbers.Spoil
    | numbers.Flip
    | Helper
)


def find_fault(name: str) -> Fault:
    """Return the fault of this name. Raises FaultRefused, which lists all, if there is none."""
    if name not in FAULTS:
        raise FaultRefused(f"there is no fault {name!r}; the faults are {', '.join(FAULTS)}")
    return FAULTS[name]
