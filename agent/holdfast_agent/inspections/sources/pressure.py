"""Shortage of processors and memory: pressure stall information, available memory, OOM kills.

These are hints, because a training job may use every core, and an oversized process is usually the script's own. The
exception are foreign processes that keep ranks waiting (`foreign_processes.py`).
"""

from __future__ import annotations

from pathlib import Path

from holdfast.node.machine import Machine, text
from holdfast.settings.inspections import InspectionPolicy
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Check, Reading, Trouble
from holdfast_agent.inspections.sources.foreign_processes import ForeignProcesses, Ranks

SLOW_INTERVAL_S = 2.0
MEMORY_FREE_BYTES_MIN = 256 * 1024 * 1024


class Pressure:
    """Reads /proc/pressure, /proc/meminfo, and the agent's own memory cgroup."""

    def __init__(self, machine: Machine, policy: InspectionPolicy, ranks: Ranks = tuple) -> None:
        self._machine = machine
        self._strangers = ForeignProcesses(machine, policy, ranks)
        self._policy = policy
        self._kills: int | None = None

    def read(self) -> Reading:
        """Return the pressure of the last minute, and kills since the last reading."""
        troubles: list[Trouble] = []
        unread: dict[str, str] = {}
        seen: dict[str, str] = {}
        for device, which, most, symptom in (
            ("cpu", "some", self._policy.cpu_pressure_percent_max, Symptom.CPU_OVERLOAD),
            ("memory", "full", self._policy.memory_pressure_percent_max, Symptom.CPU_OOM),
        ):
            percent = stalled_percent(self._machine, device, which)
            if percent is None:
                unread[device] = "the kernel has no pressure stall information: start it with psi=1"
                continue
            seen[device] = f"{percent:g} % of the last minute waited for"
            if percent > most:
                waiting = {"some": "some processes", "full": "all processes"}[which]
                detail = f"{waiting} waited for {device} {percent:g} % of the last minute, the limit is {most:g} %"
                troubles.append(Trouble(device=device, kind="pressure", detail=detail, symptom=symptom))
        free_bytes = available_bytes(self._machine)
        if free_bytes is not None and free_bytes < MEMORY_FREE_BYTES_MIN:
            detail = f"{free_bytes >> 20} MiB of memory are left"
            troubles.append(Trouble(device="memory", kind="free", detail=detail, symptom=Symptom.CPU_OOM))
        if (strangers := self._strangers.look()) is not None:
            troubles.append(strangers)
        troubles += self._killed()
        return Reading(troubles=tuple(troubles), unread=unread, seen=seen)

    def _killed(self) -> list[Trouble]:
        """Return the kills in the node's cgroup. The kernel log has them too, but may be unreadable."""
        before, self._kills = self._kills, oom_kills(self._machine)
        if before is None or self._kills is None or self._kills <= before:
            return []
        count = self._kills - before
        detail = f"the kernel killed {count} processes at the limit of this node's memory cgroup"
        return [
            Trouble(
                device="memory",
                kind="oom kill",
                detail=detail,
                symptom=Symptom.CPU_OOM,
                scope="node",
                is_momentary=True,
            )
        ]


def pressure_check(policy: InspectionPolicy, machine: Machine, ranks: Ranks) -> Check:
    """Return the check for a shortage of processors or memory, which concerns all nodes of the machine."""
    return Check(
        name="pressure",
        source="/proc/pressure, /proc/meminfo, /proc/PID/schedstat, memory cgroup",
        read=Pressure(machine, policy, ranks).read,
        interval_s=policy.pressure_s,
        slow_interval_s=min(SLOW_INTERVAL_S, policy.pressure_s),
        scope="host",
    )


def stalled_percent(machine: Machine, resource: str, which: str) -> float | None:
    """Return the percentage of the last minute in which `some` or all (`full`) processes waited."""
    for line in (text(machine.proc / "pressure" / resource) or "").splitlines():
        name, *fields = line.split()
        if name == which:
            averages = {key: value for key, _, value in (field.partition("=") for field in fields)}
            return float(averages["avg60"])
    return None


def available_bytes(machine: Machine) -> int | None:
    """Return the bytes available without swapping."""
    for line in (text(machine.proc / "meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def oom_kills(machine: Machine) -> int | None:
    """Return the number of processes killed at the memory limit of the agent's cgroup; None if it is not counted."""
    folder = memory_cgroup_folder(machine)
    for name in ("memory.events", "memory.oom_control"):
        for line in (text(folder / name) or "").splitlines() if folder else ():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return None


def memory_cgroup(machine: Machine) -> str:
    """Return the path of the agent's memory cgroup as seen here; "" for the root."""
    unified = ""
    for line in (text(machine.proc / "self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return path if path != "/" else ""
        if not controllers:
            unified = path
    return unified if unified != "/" else ""


def memory_cgroup_folder(machine: Machine) -> Path | None:
    """Return the directory of the memory cgroup; None for the root. A container's root may be its own."""
    root, path = machine.sys / "fs/cgroup", memory_cgroup(machine).lstrip("/")
    # In cgroup v1 the root has the file too, and counts for the whole machine.
    first = [root / "memory" / path, root / "memory"] if path else []
    found = [folder for folder in first if (folder / "memory.oom_control").exists()]
    found += [folder for folder in (root / path, root) if (folder / "memory.events").exists()]
    return found[0] if found else None
