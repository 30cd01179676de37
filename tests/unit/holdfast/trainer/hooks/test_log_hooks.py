"""The hook on TensorBoard's writer: its file is told of, little is kept back, and outside Holdfast nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.trainer.hooks.log_hooks import FLUSH_S_MAX, patch_event_files
from holdfast.trainer.phases import bind, binding
from holdfast_agent.watching.reports import PATH_CHARS_MAX, RankReport, ReportFile, training_log


@pytest.fixture
def hooked() -> Any:
    class EventFileWriter:
        """What the writer of `tensorboard` has for a signature."""

        def __init__(
            self, logdir: str, max_queue_size: int = 10, flush_secs: float = 120, filename_suffix: str = ""
        ) -> None:
            self.flush_secs = flush_secs
            self._file_name = f"{logdir}/events.out.tfevents.1{filename_suffix}"

    module = ModuleType("event_file_writer")
    module.EventFileWriter = EventFileWriter  # type: ignore[attr-defined]
    patch_event_files(module)
    return EventFileWriter


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "reports.jsonl"
    monkeypatch.setenv("HOLDFAST_REPORTS", str(path))
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("HOLDFAST_GENERATION", "2")
    bind(LedgerWriter(tmp_path / "ledger", rank=5, generation=2))
    yield path
    binding.ledger = None


def test_a_rank_tells_of_its_log_and_writes_it_out_in_time(hooked: Any, reports: Path, tmp_path: Path) -> None:
    assert hooked(str(tmp_path), filename_suffix=".a").flush_secs == FLUSH_S_MAX
    assert hooked(str(tmp_path), 10, 1.5, filename_suffix=".b").flush_secs == 1.5
    told = ReportFile(reports, 0).read()
    assert [(report.rank, report.generation, training_log(report)) for report in told] == [
        (5, 2, f"{tmp_path}/events.out.tfevents.1.{name}") for name in "ab"
    ]


def test_what_lies_in_an_object_store_is_not_told_of_and_a_full_disk_harms_no_script(
    hooked: Any, reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooked("s3://bucket/logs")
    assert ReportFile(reports, 0).read() == []
    monkeypatch.setenv("HOLDFAST_REPORTS", "/nowhere/reports")
    hooked("/logs")


def test_outside_of_holdfast_nothing_changes_and_wrong_calls_stay_wrong(hooked: Any) -> None:
    assert hooked("/logs").flush_secs == 120
    with pytest.raises(TypeError):
        hooked()


def test_a_module_without_the_writer_is_left_alone() -> None:
    patch_event_files(ModuleType("event_file_writer"))


@pytest.mark.parametrize(
    ("kind", "path", "expected"),
    [
        ("training_log", "/a", "/a"),
        ("training_log", 5, None),
        ("training_log", "x" * (PATH_CHARS_MAX + 1), None),
        ("other", "/a", None),
    ],
)
def test_a_report_of_a_log_is_understood(kind: str, path: str | int, expected: str | None) -> None:
    assert training_log(RankReport(kind=kind, at_ns=1, rank=0, generation=1, fields={"path": path})) == expected
