"""A script that reports without end does not have its agent publish without end."""

from __future__ import annotations

from pathlib import Path

from holdfast_agent.watching.reports import AT_ONCE, PER_S, ReportFile


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
