"""Calls that never return do not stop `holdfast doctor`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.cli.doctor.reading_machine import read_disks, within


def test_a_call_that_does_not_return_is_left_behind() -> None:
    over = threading.Event()
    with pytest.raises(TimeoutError):
        within(over.wait, 0.05)
    over.set()


def test_a_call_gives_its_result_or_its_error() -> None:
    assert within(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(lambda: 1 // 0)


def test_a_file_system_is_listed_once_and_what_is_elsewhere_not_at_all(tmp_path: Path) -> None:
    (disk,) = read_disks([tmp_path, tmp_path, tmp_path / "not there"])
    assert disk.path == str(tmp_path) and disk.free_bytes is not None and disk.total_bytes > 0
