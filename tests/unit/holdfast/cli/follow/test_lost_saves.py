"""What `holdfast run` says at the end about saves whose files never came."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli.follow.lost_saves import lost_saves
from holdfast.trainer.write_behind.disk_state import state_of
from holdfast.trainer.write_behind.journal import Journal
from holdfast.trainer.write_behind.saved_files import JournalEntry


def test_only_files_that_are_as_before_their_last_save_are_lost(tmp_path: Path) -> None:
    old, changed, absent = (tmp_path / name for name in ("old.pt", "changed.pt", "absent.pt"))
    old.write_bytes(b"before")
    changed.write_bytes(b"before")
    files = {str(path): state_of(str(path)) for path in (old, changed, absent)}
    changed.write_bytes(b"after it")
    journal = Journal(tmp_path / "job", 3)
    assert journal.open() is None and list(lost_saves(tmp_path / "job")) == []
    journal.answered(
        JournalEntry(generation=1, step=2, world_size=4, saved_at_ns=1_700_000_000_000_000_000, files=files)
    )
    assert list(lost_saves(tmp_path / "job")) == [
        f"{old} as saved at 2023-11-14 22:13:20 UTC is lost, the job ended before it was written; "
        "the one before it is there",
        f"{absent} as saved at 2023-11-14 22:13:20 UTC is lost, the job ended before it was written; "
        "there is none before it",
    ]
    journal.written()
    assert list(lost_saves(tmp_path / "job")) == []


def test_a_directory_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    assert list(lost_saves(tmp_path / "none")) == []
    (tmp_path / "memory-checkpoints").mkdir()
    (tmp_path / "memory-checkpoints" / "rank-00000.json").write_text("{half")
    assert list(lost_saves(tmp_path)) == []
