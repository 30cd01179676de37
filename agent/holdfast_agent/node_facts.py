"""Facts about the node, and the self-check before it registers."""

from __future__ import annotations

import os
import shutil
import socket
from importlib import metadata
from pathlib import Path

from holdfast.events.parts.job import CheckResult, NodeFacts
from holdfast.node.proc.machine_memory import memory_of_machine
from holdfast_agent.zygote.wire import Welcome

DISK_FREE_BYTES_MIN = 256 * 1024 * 1024
MEMORY_FREE_BYTES_MIN = 256 * 1024 * 1024
STORE_PORTS_MIN = 1

_MIB = 1024 * 1024


def node_facts(address: str, store_ports: tuple[int, ...], vault_port: int | None, rack: str) -> NodeFacts:
    """Return the facts that a node registers with."""
    return NodeFacts(
        address=address,
        hostname=socket.gethostname(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        store_ports=store_ports,
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        version=metadata.version("holdfast"),
        vault_port=vault_port,
        rack=rack,
    )


def self_check(directory: Path, zygote: Welcome) -> tuple[CheckResult, ...]:
    """Return the results of the check before a registration: disk, memory, zygote and ports for stores."""
    return (
        _disk(directory),
        _at_least("memory", memory_of_machine()[0], MEMORY_FREE_BYTES_MIN, "available"),
        CheckResult(name="zygote", status="ok", detail=f"warm in {zygote.preload_s:.1f} s, pid {zygote.pid}"),
        CheckResult(
            name="store_ports",
            status="ok" if len(zygote.store_ports) >= STORE_PORTS_MIN else "failed",
            detail="holds " + ", ".join(map(str, zygote.store_ports)),
        ),
        CheckResult(name="versions", status="ok", detail=f"Python {zygote.python}, torch {zygote.torch}"),
    )


def failed_checks(checks: tuple[CheckResult, ...]) -> frozenset[str]:
    """Return the names of the checks that failed."""
    return frozenset(check.name for check in checks if check.status == "failed")


def _disk(directory: Path) -> CheckResult:
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return CheckResult(name="disk", status="unreadable", detail=str(error))
    return _at_least("disk", free, DISK_FREE_BYTES_MIN, f"free in {directory}")


def _at_least(name: str, found: int, needed: int, what: str) -> CheckResult:
    status = "ok" if found >= needed else "failed"
    return CheckResult(name=name, status=status, detail=f"{found // _MIB} MiB {what}, {needed // _MIB} MiB needed")
