"""Foreign processes that take processor time from the job's ranks.

Ranks that wait for processors are no fault by themselves: there may be more ranks than processors. It is a fault if
most of the time goes to other processes, such as strays, backups or leftovers of an earlier job. The check only applies
where the node has the machine or a control group to itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping

import msgspec

from holdfast.node.machine import Machine, text
from holdfast.settings.inspections import InspectionPolicy
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Trouble

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_NS = 1e9
_AGENT = "holdfast_agent"
_PACKAGES = (_AGENT, "holdfast_vault", "holdfast_checks")
SHARE_MIN = 0.5
"""Minimum share of the processor time used."""

Ranks = Callable[[], Collection[int]]
"""Pids of the node's ranks."""


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time that a process has used so far, in seconds, and its parent."""

    name: str
    parent: int
    started: int
    cpu_s: float


class ForeignProcesses:
    """Compares each reading with the one before."""

    def __init__(self, machine: Machine, policy: InspectionPolicy, ranks: Ranks) -> None:
        self._proc = machine.proc
        self._percent_max = policy.cpu_pressure_percent_max
        self._ranks = ranks
        self._waited: dict[int, tuple[float, float]] = {}
        self._used: dict[int, ProcessUsage] = {}

    def look(self) -> Trouble | None:
        """Return the trouble; None at the first reading of ranks, and at the first at which they wait."""
        percent = self._waited_percent()
        if percent <= self._percent_max:
            self._used = {}
            return None
        before, self._used = self._used, self._processes()
        return self._trouble(before, percent) if before else None

    def _waited_percent(self) -> float:
        """Return the percentage of the time since the last reading that runnable main threads of ranks had to wait."""
        before, self._waited = self._waited, {}
        ran_s = waited_s = 0.0
        for pid in self._ranks():
            fields = (text(self._proc / str(pid) / "schedstat") or "").split()
            if len(fields) < 2:
                continue
            self._waited[pid] = now = (int(fields[0]) / _NS, int(fields[1]) / _NS)
            if pid in before:
                ran_s += now[0] - before[pid][0]
                waited_s += now[1] - before[pid][1]
        return 100 * waited_s / (ran_s + waited_s) if waited_s > 0 else 0.0

    def _trouble(self, before: Mapping[int, ProcessUsage], percent: float) -> Trouble | None:
        here = {pid: used for pid, used in self._used.items() if self._group(pid) == self._group(None)}
        agents = {pid for pid in here if _AGENT in self._arguments(pid)}
        if len(agents) > 1:
            return None
        new = {pid: used.cpu_s - _cpu_s_before(before.get(pid), used) for pid, used in here.items()}
        foreign = {pid: cpu_s for pid, cpu_s in new.items() if not self._is_of_holdfast(pid)}
        used_s, foreign_s = sum(new.values()), sum(foreign.values())
        if not foreign or foreign_s <= SHARE_MIN * used_s:
            return None
        most = max(foreign, key=lambda pid: foreign[pid])
        used = f"used {foreign_s:.1f} of {used_s:.1f} s of processor time, most of them {here[most].name}[{most}]"
        return Trouble(
            device="cpu",
            kind="strangers",
            detail=f"{len(foreign)} processes that are not the job's {used}; "
            f"the ranks waited for {percent:.0f} % of what they wanted to run",
            confidence="tolerate",
            symptom=Symptom.CPU_OVERLOAD,
            scope="node",
        )

    def _is_of_holdfast(self, pid: int) -> bool:
        """Return True for agents, zygotes (which adopt what ranks leave behind), vaults, and all descendants."""
        seen: set[int] = set()
        while pid > 0 and pid not in seen:
            if any(argument.partition(".")[0] in _PACKAGES for argument in self._arguments(pid)):
                return True
            seen.add(pid)
            parent = self._used.get(pid)
            pid = parent.parent if parent else 0
        return False

    def _processes(self) -> dict[int, ProcessUsage]:
        found = {}
        for name in os.listdir(self._proc):
            if name.isdigit() and (used := _parsed(text(self._proc / name / "stat"))) is not None:
                found[int(name)] = used
        return found

    def _arguments(self, pid: int) -> list[str]:
        return (text(self._proc / str(pid) / "cmdline") or "").split("\0")

    def _group(self, pid: int | None) -> str:
        """Return the processor control group of a process; None: of this one."""
        unified = ""
        for line in (text(self._proc / (str(pid) if pid is not None else "self") / "cgroup") or "").splitlines():
            _, controllers, path = line.split(":", 2)
            if "cpu" in controllers.split(","):
                return path
            if not controllers:
                unified = path
        return unified


def _cpu_s_before(before: ProcessUsage | None, now: ProcessUsage) -> float:
    return before.cpu_s if before is not None and before.started == now.started else 0.0


def _parsed(line: str | None) -> ProcessUsage | None:
    """Parse `pid (name) state parent ...`, where the name may contain anything."""
    if not line:
        return None
    head, _, tail = line.rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return ProcessUsage(
        name=head.partition("(")[2],
        parent=int(fields[1]),
        started=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
    )
