"""Faults of `holdfast inject` on the directories of a cluster that does not run, and on plain processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.embedded.layout import ClusterInfo, ClusterLayout, Fabric, Ports
from holdfast.faults.injections import Injection, InjectionLog
from holdfast.faults.registry import find_fault
from holdfast.faults.requirements import lacking
from holdfast.faults.target import FaultTarget, RunningRank, TargetProcess
from holdfast.fresh_ids import uuid7
from holdfast.node.kernel import stat_fields

WITHIN_S = 20.0


@contextlib.contextmanager
def cluster_files(directory: Path) -> Iterator[ClusterLayout]:
    """The directories of a cluster with one node; in the end all faults are undone."""
    layout = ClusterLayout(directory)
    layout.create()
    layout.node("node-0").mkdir()
    yield layout
    for left in InjectionLog(layout).all():
        InjectionLog(layout).undo(left)


def inject(
    layout: ClusterLayout,
    name: str,
    *,
    struck: int | None = None,
    node: str = "node-0",
    network: Fabric | None = None,
    **options: str,
) -> Injection:
    """Inject, aimed at a process as at a rank. Skips where the machine lacks what is needed."""
    fault = find_fault(name)
    if reasons := [reason for need in fault.needs if (reason := lacking(need))]:
        pytest.skip("; ".join(reasons))
    process = TargetProcess.of(struck) if struck is not None else None
    info = ClusterInfo(
        version="1",
        pid=None,
        ports=Ports(postgres=1, nats=2, nats_monitor=3),
        nats_url="",
        nats_monitor_url="",
        database_urls={},
        nodes=["node-0", "node-1"],
        fabric=network,
    )
    target = FaultTarget(uuid7(), layout, info, node, RunningRank("job", 0, node, process) if process else None)
    injected = Injection(
        id=target.id,
        fault=name,
        at=datetime.now(UTC),
        by="a test",
        steps=fault.plan(target, fault.configured(options)),  # type: ignore[arg-type]
    )
    InjectionLog(layout).inject(injected)
    return injected


def undo(layout: ClusterLayout) -> None:
    """As `holdfast inject --undo` does, from what is on record."""
    (injected,) = InjectionLog(layout).all()
    InjectionLog(layout).undo(injected)
    InjectionLog(layout).undo(injected)


def until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WITHIN_S:g} s: {what}"
        time.sleep(0.01)


def state_of(pid: int) -> str:
    fields = stat_fields(pid)
    return fields[0] if fields else ""


def kernel_log() -> str:
    """The records that the kernel keeps, "priority,number,time,flags;text" each."""
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    records = []
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    records.append(os.read(descriptor, 8192).decode(errors="replace"))
                except BrokenPipeError:
                    # Overwritten while it was read; the next one is there.
                    continue
    finally:
        os.close(descriptor)
    return "".join(records)
