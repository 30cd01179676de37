"""Ranks and nodes limited by control groups: less memory than they use, a share of a core."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from holdfast.faults import cgroups, process_memory
from holdfast.faults.fault import Fault, FaultOptions, FaultRefused, FaultScope, FaultStep
from holdfast.faults.helpers import Helper
from holdfast.faults.kinds.load import BURNERS_MAX
from holdfast.faults.requirements import Requirement
from holdfast.faults.target import FaultTarget, TargetProcess
from holdfast.symptoms import Symptom

_PERIOD_US = 100_000
_SHARE_MIN = 0.01


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A process and its former group, relative to the hierarchy's root."""

    process: TargetProcess
    came_from: str


class Confine(FaultStep, frozen=True, kw_only=True, tag="confine"):
    """A group with limits, and processes to move into it. Their children are in it too, and leave with them."""

    root: str
    name: str
    limits: dict[str, str]
    members: tuple[Member, ...]

    def do(self) -> None:
        self._group.mkdir()
        for file, value in self.limits.items():
            (self._group / file).write_text(value)
        for member in self.members:
            if member.process.is_alive:
                cgroups.move(member.process.pid, self._group)

    def undo(self) -> None:
        came_from = {member.process.pid: member.came_from for member in self.members}
        common = self.members[0].came_from if self.members else ""
        while left := cgroups.members(self._group):
            for pid in left:
                cgroups.move(pid, Path(self.root) / came_from.get(pid, common))
        cgroups.remove(self._group)

    @property
    def _group(self) -> Path:
        return Path(self.root) / self.name


class OnePageMore(FaultStep, frozen=True, kw_only=True, tag="one_page_more"):
    """The process gets a page that it has not asked for yet, charged to its group; it reads as before. For a process
    that would not ask for one itself in a while.
    """

    process: TargetProcess

    @property
    def lasts(self) -> bool:
        return False

    def do(self) -> None:
        with contextlib.suppress(OSError):  # The page may be refused, or the process killed meanwhile.
            if (page := process_memory.untouched(self.process.pid)) is not None:
                process_memory.write(self.process.pid, page, bytes(8))


class SlowOptions(FaultOptions, frozen=True, kw_only=True):
    """`cores`: the limit of all processes of the node together."""

    cores: float = 0.2


class OverloadOptions(FaultOptions, frozen=True, kw_only=True):
    """`cores`: the limit of the node; `burners`: processes that compete for them."""

    cores: float = 1.0
    burners: int = 8


def _oom_kill(aim: FaultTarget, _: FaultOptions) -> tuple[FaultStep, ...]:
    assert aim.rank is not None
    process = aim.rank.process
    # Memory in use stays charged to the former group: the next page exceeds the limit.
    limits = {1: {"memory.limit_in_bytes": "0"}, 2: {"memory.max": "0"}}
    return (_confine(aim, "memory", limits, (process,)), OnePageMore(process=process))


def _slow_node(aim: FaultTarget, options: SlowOptions) -> tuple[FaultStep, ...]:
    if not options.cores >= _SHARE_MIN:
        raise FaultRefused(f"cores={options.cores:g}: give {_SHARE_MIN:g} or more")
    quota_us = round(options.cores * _PERIOD_US)
    limits = {
        1: {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota_us)},
        2: {"cpu.max": f"{quota_us} {_PERIOD_US}"},
    }
    return (_confine(aim, "cpu", limits, aim.processes()),)


def _overload_node(aim: FaultTarget, options: OverloadOptions) -> tuple[FaultStep, ...]:
    if not 0 < options.burners <= BURNERS_MAX:
        raise FaultRefused(f"burners={options.burners}: give 1 to {BURNERS_MAX}")
    (share,) = _slow_node(aim, SlowOptions(cores=options.cores))
    assert isinstance(share, Confine)
    group = str(Path(share.root) / share.name)
    return (
        share,
        Helper(mark=aim.mark, module="holdfast.faults.kinds.load", arguments=(str(options.burners), group)),
    )


def _confine(
    aim: FaultTarget, controller: str, limits: dict[int, dict[str, str]], processes: tuple[TargetProcess, ...]
) -> Confine:
    root, version = cgroups.hierarchy(controller)
    return Confine(
        root=str(root),
        name=aim.mark,
        limits=limits[version],
        members=tuple(
            Member(process=process, came_from=cgroups.group_of(process.pid, controller, version))
            for process in processes
        ),
    )


FAULTS = (
    Fault(
        "oom-kill",
        Symptom.CPU_OOM,
        FaultScope.RANK,
        "a memory cgroup without memory for the rank: the kernel kills it and logs why",
        _oom_kill,
        needs=(Requirement.MEMORY_CGROUP,),
        undo="the cgroup is removed",
    ),
    Fault(
        "slow-node",
        Symptom.MFU_DECLINE,
        FaultScope.NODE,
        "a CPU quota for all processes of the node",
        _slow_node,
        needs=(Requirement.CPU_CGROUP,),
        options=SlowOptions,
        undo="the processes are moved back, the cgroup is removed",
    ),
    Fault(
        "overload-node",
        Symptom.CPU_OVERLOAD,
        FaultScope.NODE,
        "the node gets the cores of a small container, and foreign processes that burn them",
        _overload_node,
        needs=(Requirement.CPU_CGROUP,),
        options=OverloadOptions,
        undo="the strangers are killed, its processes are moved back, the cgroup is removed",
    ),
)
