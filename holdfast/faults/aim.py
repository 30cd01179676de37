"""What a fault is aimed at: a rank, a node or this machine, found in the directory of an embedded cluster.

Nothing of the cluster is asked: its database or its bus may be what has failed. The processes of ranks are known from
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

from holdfast.embedded.layout import ClusterInfo, Layout
from holdfast.embedded.processes.child_process import started_ticks
from holdfast.embedded.processes.proctree import node_processes
from holdfast.node.ledger.ledger_layout import HEADER, MAGIC

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_CLOCK_NS = 1_000_000_000
"""By how much the clock may have been set since."""


class NotThere(LookupError):
    """There is no such node or rank; the message says which there are."""


class Proc(msgspec.Struct, frozen=True, kw_only=True):
    """A process, told from a later one with the same pid by when it started (clock ticks since boot)."""

    pid: int
    ticks: int

    @classmethod
    def of(cls, pid: int) -> Proc | None:
        """The process under this pid now."""
        ticks = started_ticks(pid)
        return None if ticks is None else cls(pid=pid, ticks=ticks)

    @property
    def is_alive(self) -> bool:
        return started_ticks(self.pid) == self.ticks

    @property
    def began_ns(self) -> int:
        """When it began, Unix time, to a tick of the clock."""
        booted_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return booted_ns + self.ticks * _TICK_NS

    def signal(self, number: int) -> bool:
        """Send a signal; whether it was there to get it."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # Compared after opening: from here on the descriptor means this very process.
            if not self.is_alive:
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


class Rank(NamedTuple):
    """A rank that runs."""

    job: str
    rank: int
    node: str
    process: Proc


class Aim(NamedTuple):
    """One fault's aim. `id` is that of the injection; `rank` is None for what strikes a whole node or the machine."""

    id: str
    layout: Layout
    info: ClusterInfo
    node: str | None = None
    rank: Rank | None = None

    @property
    def job(self) -> str | None:
        """The job whose rank is struck."""
        return self.rank.job if self.rank else None

    @property
    def mark(self) -> str:
        """What marks groups, mounts and processes as this injection's own."""
        return f"holdfast-{self.id.replace('-', '')[-12:]}"

    @property
    def place(self) -> Path:
        """A directory for what this injection needs of files."""
        return self.layout.faults / self.mark

    @property
    def directory(self) -> Path:
        """The node's state directory."""
        assert self.node is not None
        return self.layout.node(self.node)

    @property
    def agent(self) -> Proc | None:
        """The node's agent, None while it is off."""
        record = self.info.children.get(self.node or "")
        return Proc(pid=record.pid, ticks=record.started_ticks) if record else None

    def processes(self) -> tuple[Proc, ...]:
        """All processes of the node: agent, zygote, vault, ranks and what they started."""
        agent = self.agent
        pids = node_processes(self.directory, agent.pid if agent and agent.is_alive else None)
        return tuple(process for pid in sorted(pids) if (process := Proc.of(pid)) is not None)


def aim(
    id: str, layout: Layout, info: ClusterInfo, *, node: str | None, rank: int | None, job: str | None = None
) -> Aim:
    """What these words mean in this cluster.

    Raises:
        NotThere: nothing that is there.
    """
    if node is not None and node not in info.nodes:
        raise NotThere(f"there is no node {node}; the nodes are {', '.join(info.nodes)}")
    if rank is None:
        return Aim(id, layout, info, node)
    running = ranks(layout, info)
    found = [one for one in running if one.rank == rank and job in (None, one.job) and node in (None, one.node)]
    if len({one.job for one in found}) > 1:
        raise NotThere(f"several jobs have a rank {rank}: name one of {', '.join(one.job for one in found)} with --job")
    if not found:
        there = ", ".join(f"{one.rank} of {one.job} on {one.node}" for one in running)
        wanted = f"rank {rank}" + (f" of {job}" if job else "") + (f" on {node}" if node else "")
        raise NotThere(f"no {wanted} runs on this machine; there are: {there or 'no ranks at all'}")
    return Aim(id, layout, info, found[0].node, found[0])


def ranks(layout: Layout, info: ClusterInfo) -> list[Rank]:
    """The ranks that run on the cluster's nodes, by job and number."""
    found = []
    for node in info.nodes:
        for file in (layout.node(node) / "ledgers").glob("*/*/rank-*.ledger"):
            number, process = _of_ledger(file)
            if process is not None:
                found.append(Rank(file.parent.parent.name, number, node, process))
    return sorted(found, key=lambda one: one[:2])


def _of_ledger(file: Path) -> tuple[int, Proc | None]:
    """The rank that writes this ledger, and its process if that still runs."""
    try:
        with file.open("rb") as stream:
            magic, _, _, pid, rank, _, created_ns = HEADER.unpack(stream.read(HEADER.size))
    except (OSError, struct.error):
        return -1, None
    process = Proc.of(pid) if magic == MAGIC else None
    # A process that began after the ledger has the pid of one that is gone.
    if process is not None and process.began_ns > created_ns + _CLOCK_NS:
        process = None
    return rank, process
