"""The directory in memory for tests of a node: its own, whatever others have made there before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import holdfast_checks.__main__ as checks


def test_what_a_killed_run_left_is_removed_and_a_name_cannot_be_taken_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "SHARED_MEMORY", tmp_path)
    monkeypatch.setenv("HOLDFAST_REPORTS", "/state/reports/j.jsonl")
    with checks._scratch() as first:
        assert Path(first).parent == tmp_path and Path(first).stat().st_mode & 0o777 == 0o700
    stem = Path(first).name.rpartition("-")[0]
    left, taken = tmp_path / f"{stem}-left", tmp_path / stem
    (left / "inner").mkdir(parents=True)
    taken.symlink_to("/")
    with checks._scratch() as second:
        assert second != first and os.listdir(second) == []
        assert not left.exists() and taken.is_symlink()
    assert not Path(second).exists()
