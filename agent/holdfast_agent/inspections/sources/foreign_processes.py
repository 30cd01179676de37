"""Whether processes that are not the job's take the processors from its ranks.

That ranks wait for processors is no fault by itself: they may be more than there are. It is one where most of the time
goes to others: a stray process, a backup, what an earlier job has left behind. Asked where this node has its processors
for itself, the machine or a control group of its own; where nodes share them, nobody is a stranger.
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
"""Of the processor time that was used."""

Ranks = Callable[[], Collection[int]]
"""The pids of the node's ranks, as they stand."""


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has used of processors so far, in seconds, and whose child it is."""

    name: str
    parent: int
    started: int
    cpu_s: float


class ForeignProcesses:
    """Compares one look with the one before."""

    def __init__(self, machine: Machine, policy: InspectionPolicy, ranks: Ranks) -> None:
        self._proc = machine.proc
        self._percent_max = policy.cpu_pressure_percent_max
        self._ranks = ranks
        self._waited: dict[int, tuple[float, float]] = {}
        self._used: dict[int, ProcessUsage] = {}

    def look(self) -> Trouble | None:
        """What is wrong; nothing at the first look at ranks, nor at the first at which they wait."""
        percent = self._waited_percent()
        if percent <= self._percent_max:
            self._used = {}
            return None
        before, self._used = self._used, self._processes()
        return self._told(before, percent) if before else None

    def _waited_percent(self) -> float:
        """Of the time in which the ranks' main threads wanted to run since the last look, what they waited."""
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

    def _told(self, before: Mapping[int, ProcessUsage], percent: float) -> Trouble | None:
        here = {pid: used for pid, used in self._used.items() if self._group(pid) == self._group(None)}
        agents = {pid for pid in here if _AGENT in self._arguments(pid)}
        if len(agents) > 1:
            return None
        new = {pid: used.cpu_s - _of_the_same(before.get(pid), used) for pid, used in here.items()}
        strange = {pid: cpu_s for pid, cpu_s in new.items() if not self._is_of_holdfast(pid)}
        used_s, strange_s = sum(new.values()), sum(strange.values())
        if not strange or strange_s <= SHARE_MIN * used_s:
            return None
        most = max(strange, key=lambda pid: strange[pid])
        used = f"used {strange_s:.1f} of {used_s:.1f} s of processor time, most of them {here[most].name}[{most}]"
        return Trouble(
            device="cpu",
            kind="strangers",
            detail=f"{len(strange)} processes that are not the job's {used}; "
            f"the ranks waited for {percent:.0f} % of what they wanted to run",
            confidence="tolerate",
            symptom=Symptom.CPU_OVERLOAD,
            scope="node",
        )

    def _is_of_holdfast(self, pid: int) -> bool:
        """Whether it descends from an agent, a zygote (which adopts what ranks leave behind) or a vault, or is one."""
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
        """The control group that a process gets its processors by; None: this one."""
        unified = ""
        for line in (text(self._proc / (str(pid) if pid is not None else "self") / "cgroup") or "").splitlines():
            _, controllers, path = line.split(":", 2)
            if "cpu" in controllers.split(","):
                return path
            if not controllers:
                unified = path
        return unified


def _of_the_same(before: ProcessUsage | None, now: ProcessUsage) -> float:
    return before.cpu_s if before is not None and before.started == now.started else 0.0


def _parsed(line: str | None) -> ProcessUsage | None:
    """`pid (name) state parent ...`: the name may have anything in it."""
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
