"""Resource use of the node's ranks, sampled from outside every few seconds. A healthy job's use is regular."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.clock import Now
from holdfast.events import TelemetryMeasured
from holdfast.events.parts.samples import RankTelemetry
from holdfast.fresh_ids import uuid7
from holdfast.node.kernel import stat_fields
from holdfast.node.machine import entries, number
from holdfast_agent.devices.meters import NodeMeters
from holdfast_agent.plan.node_state import Crew, RankStatus
from holdfast_agent.tracer.process_tree import processes_of, work_of

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RESIDENT_PAGES = 21
"""Indices of the fields of /proc/PID/stat after the name."""

_RDMA_WORD_BYTES = 4
"""Unit of the data counters of an InfiniBand or RoCE port."""

_SENT_BYTES = 8
"""Indices of the numbers in a line of /proc/net/dev."""


class ResourceUse(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that the processes of a rank have used so far; None if unreadable."""

    cpu_s: float
    memory_bytes: int
    io_bytes: int | None


class PublishEvent(Protocol):
    def __call__(self, *events: TelemetryMeasured) -> None: ...


class Telemetry:
    """Sampler for the ranks of the node's crew while they train."""

    def __init__(
        self,
        node: str,
        every_s: float,
        crew: Callable[[], Crew | None],
        statuses: Callable[[], Mapping[int, RankStatus]],
        publish: PublishEvent,
        now: Now,
        meters: NodeMeters | None = None,
    ) -> None:
        """`meters`: of the node's devices; None: they are not measured."""
        self._node = node
        self._every_s = every_s
        self._meters = meters
        self._crew = crew
        self._statuses = statuses
        self._publish = publish
        self._now = now

    async def run(self) -> None:
        if not self._every_s:
            return
        before: UsageSample | None = None
        while True:
            await asyncio.sleep(self._every_s)
            crew = self._crew()
            if crew is None or not crew.trains or not crew.stepped or not crew.pids:
                before = None
                if self._meters is not None and crew is None:
                    self._meters.close()
                continue
            statuses = self._statuses()
            used, sent, rank_of = await asyncio.to_thread(_measure, dict(crew.pids))
            activity = await self._meters.measure(crew.pids, rank_of) if self._meters is not None else None
            collectives = {rank: status.collectives for rank, status in statuses.items()}
            look = UsageSample(
                pids=dict(crew.pids), at_s=time.monotonic(), used=used, sent_bytes=sent, collectives=collectives
            )
            if before is not None and before.pids == look.pids and self._crew() is crew:
                self._publish(
                    TelemetryMeasured(
                        id=uuid7(),
                        at=self._now(),
                        source=f"agent/{self._node}",
                        node=self._node,
                        job=crew.order.job,
                        generation=crew.order.generation,
                        cause=crew.order.cause,
                        ranks=between(before, look),
                        interval_s=self._every_s,
                        devices=activity.devices if activity is not None else (),
                        ports=activity.ports if activity is not None else (),
                    )
                )
            before = look


class UsageSample(msgspec.Struct, frozen=True, kw_only=True):
    """Cumulative use by rank at one moment. `at_s` is monotonic."""

    pids: dict[int, int]
    at_s: float
    used: dict[int, ResourceUse]
    sent_bytes: int | None
    collectives: dict[int, int]


def between(before: UsageSample, look: UsageSample) -> tuple[RankTelemetry, ...]:
    """Return the use between two samples."""
    passed_s = max(look.at_s - before.at_s, 1e-6)

    def pace(old: float | None, new: float | None) -> float | None:
        # A worker that exits takes its counters along; rates never fall below 0.
        return None if old is None or new is None else max(0.0, (new - old) / passed_s)

    return tuple(
        RankTelemetry(
            rank=rank,
            cpu_cores=pace(before.used[rank].cpu_s, used.cpu_s),
            memory_bytes=used.memory_bytes,
            io_bytes_per_s=pace(before.used[rank].io_bytes, used.io_bytes),
            sent_bytes_per_s=pace(before.sent_bytes, look.sent_bytes),
            collectives_per_s=pace(before.collectives.get(rank), look.collectives.get(rank)),
        )
        for rank, used in sorted(look.used.items())
        if rank in before.used
    )


def _measure(pids: Mapping[int, int]) -> tuple[dict[int, ResourceUse], int | None, dict[int, int]]:
    """Return what each rank uses, what the node sent, and the rank of each process."""
    of_rank: dict[int, list[int]] = {}
    for process in processes_of(pids):
        of_rank.setdefault(process.rank, []).append(process.pid)
    rank_of = {pid: rank for rank, processes in of_rank.items() for pid in processes}
    used = {rank: found for rank, processes in of_rank.items() if (found := _used(processes)) is not None}
    sent = _sum(sent_bytes(_text(Path("/proc/net/dev"))), rdma_sent_bytes(Path("/sys/class/infiniband")))
    return used, sent, rank_of


def _used(pids: list[int]) -> ResourceUse | None:
    cpu_s, memory_bytes, io_bytes, is_seen = 0.0, 0, 0, False
    may_read = True
    for pid in pids:
        work, fields = work_of(pid), stat_fields(pid)
        if work is None or fields is None:
            continue
        is_seen = True
        cpu_s += work.cpu_s
        memory_bytes += int(fields[_RESIDENT_PAGES]) * _PAGE_BYTES
        may_read = may_read and work.io_bytes is not None
        io_bytes += work.io_bytes or 0
    return (
        ResourceUse(cpu_s=cpu_s, memory_bytes=memory_bytes, io_bytes=io_bytes if may_read else None)
        if is_seen
        else None
    )


def sent_bytes(listing: str) -> int | None:
    """Return the bytes sent by all interfaces except loopback (/proc/net/dev); None if there is none."""
    lines = (line.partition(":") for line in listing.splitlines()[2:])
    sent = [int(numbers.split()[_SENT_BYTES]) for name, _, numbers in lines if name.strip() != "lo"]
    return sum(sent) if sent else None


def rdma_sent_bytes(folder: Path) -> int | None:
    """Return the bytes sent by all ports of RDMA cards (/sys/class/infiniband); None if there is none.

    The kernel sees nothing of them: collectives of GPUs on several nodes are in no counter of /proc/net/dev.
    """
    ports = (port for card in entries(folder) for port in entries(card / "ports"))
    words = [found for port in ports if (found := number(port / "counters/port_xmit_data")) is not None]
    return _RDMA_WORD_BYTES * sum(words) if words else None


def _sum(*parts: int | None) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
