"""The target of a fault: a rank, a node or this machine, found in the directory of an embedded cluster.

Neither the database nor the bus is asked, because either may be what has failed. The processes of ranks are found by
their ledgers.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.embedded.layout import ClusterInfo, ClusterLayout
from holdfast.embedded.processes.proctree import node_processes
from holdfast.node.kernel import started_ticks
from holdfast.node.ledger.ledger_layout import HEADER, MAGIC

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_CLOCK_NS = 1_000_000_000
"""Tolerated change of the system clock since the ledger was created."""


class TargetNotFound(LookupError):
    """There is no such node or rank; the message lists those that exist."""


class TargetProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process, distinguished by its start time from a later one with the same pid."""

    pid: int
    ticks: int
    """Start time in clock ticks since boot."""

    @classmethod
    def of(cls, pid: int) -> TargetProcess | None:
        """Return the process that has this pid now, None if there is none."""
        ticks = started_ticks(pid)
        return None if ticks is None else cls(pid=pid, ticks=ticks)

    @property
    def is_alive(self) -> bool:
        return started_ticks(self.pid) == self.ticks

    @property
    def began_ns(self) -> int:
        """Start time in Unix time, with the precision of a clock tick."""
        booted_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return booted_ns + self.ticks * _TICK_NS

    def signal(self, number: int) -> bool:
        """Send a signal. Return False if the process is gone."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_alive:  # Compared after opening: from here on the descriptor means this very process.
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


class RunningRank(NamedTuple):
    job: str
    rank: int
    node: str
    process: TargetProcess


class FaultTarget(NamedTuple):
    id: str
    """Id of the injection."""
    layout: ClusterLayout
    info: ClusterInfo
    node: str | None = None
    """None if the target is this machine."""
    rank: RunningRank | None = None
    """None if the target is a whole node or this machine."""

    @property
    def job(self) -> str | None:
        """The job of the target rank, None for other targets."""
        return self.rank.job if self.rank else None

    @property
    def mark(self) -> str:
        """Mark of the cgroups, mounts and processes that this injection makes."""
        return f"holdfast-{self.id.replace('-', '')[-12:]}"

    @property
    def place(self) -> Path:
        """Directory for the files of this injection."""
        return self.layout.faults / self.mark

    @property
    def directory(self) -> Path:
        assert self.node is not None
        return self.layout.node(self.node)

    @property
    def agent(self) -> TargetProcess | None:
        """The node's agent, None while it is off."""
        record = self.info.children.get(self.node or "")
        return TargetProcess(pid=record.pid, ticks=record.started_ticks) if record else None

    def processes(self) -> tuple[TargetProcess, ...]:
        """Return all processes of the node: agent, zygote, vault, ranks and what they started."""
        agent = self.agent
        pids = node_processes(self.directory, agent.pid if agent and agent.is_alive else None)
        return tuple(process for pid in sorted(pids) if (process := TargetProcess.of(pid)) is not None)


def find_target(
    id: str, layout: ClusterLayout, info: ClusterInfo, *, node: str | None, rank: int | None, job: str | None = None
) -> FaultTarget:
    """Find the target that the user named. Raises TargetNotFound."""
    if node is not None and node not in info.nodes:
        raise TargetNotFound(f"there is no node {node}; the nodes are {', '.join(info.nodes)}")
    if rank is None:
        return FaultTarget(id, layout, info, node)
    running = running_ranks(layout, info)
    found = [one for one in running if one.rank == rank and job in (None, one.job) and node in (None, one.node)]
    if len({one.job for one in found}) > 1:
        raise TargetNotFound(
            f"several jobs have a rank {rank}: name one of {', '.join(one.job for one in found)} with --job"
        )
    if not found:
        there = ", ".join(f"{one.rank} of {one.job} on {one.node}" for one in running)
        wanted = f"rank {rank}" + (f" of {job}" if job else "") + (f" on {node}" if node else "")
        raise TargetNotFound(f"no {wanted} runs on this machine; there are: {there or 'no ranks at all'}")
    return FaultTarget(id, layout, info, found[0].node, found[0])


def running_ranks(layout: ClusterLayout, info: ClusterInfo) -> list[RunningRank]:
    """Return the ranks that run on the cluster's nodes, by job and number."""
    found = []
    for node in info.nodes:
        for file in (layout.node(node) / "ledgers").glob("*/*/rank-*.ledger"):
            number, process = _rank_of_ledger(file)
            if process is not None:
                found.append(RunningRank(file.parent.parent.name, number, node, process))
    return sorted(found, key=lambda one: one[:2])


def _rank_of_ledger(file: Path) -> tuple[int, TargetProcess | None]:
    """Return the rank that writes this ledger, and its process if it still runs."""
    try:
        with file.open("rb") as stream:
            magic, _, _, pid, rank, _, created_ns = HEADER.unpack(stream.read(HEADER.size))
    except (OSError, struct.error):
        return -1, None
    process = TargetProcess.of(pid) if magic == MAGIC else None
    # A process that started after the ledger was created has the pid of one that is gone.
    if process is not None and process.began_ns > created_ns + _CLOCK_NS:
        process = None
    return rank, process
