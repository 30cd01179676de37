"""A script that reports without end does not have its agent publish without end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.events.parts.job import JobSpec
from holdfast.orders.node import NodeOrder, Placement
from holdfast_agent.watching.reports import AT_ONCE, PER_S, READ_BYTES_MAX, ReportFile, event_of, parse


def test_reports_are_taken_at_a_bounded_pace_and_none_is_lost(tmp_path: Path) -> None:
    now, path, count = 0.0, tmp_path / "job.jsonl", AT_ONCE + 5 * PER_S // 2
    line = b'\n{"kind":"checkpoint_saved","at_ns":1,"rank":%d,"generation":1}\n'
    path.write_bytes(b"".join(line % rank for rank in range(count)))
    reports, taken, paces = ReportFile(path, 0, lambda: now), [], []
    while reports.offset < path.stat().st_size:
        found = reports.read()
        taken += [report.rank for report in found]
        paces.append(len(found))
        now += 1.0
    assert paces == [AT_ONCE, PER_S, PER_S, PER_S // 2]
    assert taken == [*range(count)]
    assert ReportFile(path, 0, lambda: now).read()[0].rank == 0


def test_a_file_without_lines_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "job.jsonl"
    path.touch()
    os.truncate(path, 3 * READ_BYTES_MAX)
    with path.open("ab") as file:
        file.write(b'\n{"kind":"steps_kept","at_ns":1,"rank":7,"generation":1}\n')
    reports = ReportFile(path, 0)
    assert [report.rank for _ in range(5) for report in reports.read()] == [7]


def test_a_rank_that_holds_a_lease_on_its_file_does_not_hold_up_its_agent(tmp_path: Path) -> None:
    path = tmp_path / "job.jsonl"
    path.write_bytes(b'{"kind":"steps_kept","at_ns":1,"rank":7,"generation":1}\n')
    reports = ReportFile(path, 0)
    with leased(path):
        began = time.monotonic()
        assert reports.read() == []
        assert time.monotonic() - began < 20, "the kernel takes a lease away after 45 s"
    assert [report.rank for report in reports.read()] == [7]


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """A process that has a lease on a file, and gives it up to nobody who asks."""
    code = (
        "import fcntl, os, signal, sys; signal.signal(signal.SIGIO, signal.SIG_IGN); file = os.open(sys.argv[1], 0); "
        "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK); "
        "print('has it', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        if not holder.stdout.readline():
            pytest.skip("this file system has no leases")
        yield
        holder.communicate()


@pytest.mark.parametrize("changes", [{"generation": 1 << 60}, {"step": -7}, {"bytes": 1 << 60}, {"path": "x" * 5000}])
def test_a_report_that_no_service_could_read_is_not_sent(changes: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"step": 1, "path": "/p", "bytes": 1, "took_s": 1.0}
    report = {"kind": "checkpoint_saved", "at_ns": 1, "rank": 0, "generation": 1}
    spec = JobSpec(name="j", script="s", cwd="/", directory="/d")
    placement = Placement(job=spec, node_rank=0, master_addr="a", master_port=1)
    order = NodeOrder(node="n", epoch=1, generation=1, job="j", placement=placement)

    def sent(**changed: Any) -> bool:
        body = {name: changed.get(name, value) for name, value in report.items()}
        body["fields"] = {name: changed.get(name, value) for name, value in fields.items()}
        read = parse(msgspec.json.encode(body))
        return read is not None and event_of(read, order, "n", datetime.now(UTC)) is not None

    assert sent()
    assert not sent(**changes)
