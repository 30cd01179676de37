"""A script that reports without end does not have its agent publish without end."""

from __future__ import annotations

import os
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
