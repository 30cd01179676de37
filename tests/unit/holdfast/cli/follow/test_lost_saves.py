"""What `holdfast run` says at the end about saves whose files never came."""

from __future__ import annotations

import json
import os
from pathlib import Path

from holdfast.cli.follow.lost_saves import FILES_MAX, lost_saves
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


def test_whatever_an_author_plants_is_passed_over_or_shown_as_text(tmp_path: Path) -> None:
    """`holdfast run` looks there when any job has ended, often as root."""
    folder = tmp_path / "memory-checkpoints"
    folder.mkdir()
    save = {"generation": 1, "step": 1, "world_size": 1, "saved_at_ns": 0, "files": {}}

    def plant(rank: int, **fields: object) -> Path:
        path = folder / f"rank-{rank:05d}.json"
        path.write_text(json.dumps(save | fields))
        return path

    os.mkfifo(folder / "rank-00000.json")
    (folder / "rank-00001.json").symlink_to("/dev/zero")
    plant(2).write_text(json.dumps(save)[:-1] + ', "more": ' + "[" * 100_000)
    plant(3).write_bytes(b'{"\xff\xfe": 1}')
    plant(4, files={"/with\0nul": None})
    plant(10, saved_at_ns=10**400, files={"/never": None})
    plant(5, saved_at_ns=10**18 * 9, files={"/late": None})
    plant(6, files={"/tmp/\x1b[2J\n[holdfast] all is well": None})
    folder.joinpath("rank-00007.json").symlink_to(plant(8, files={"/linked": None}).rename(tmp_path / "elsewhere"))
    lines = list(lost_saves(tmp_path))
    assert [line.split(" as saved at ")[0] for line in lines] == ["/late", "/tmp/\\x1b[2J\\n[holdfast] all is well"]
    plant(9, files={f"/{number}": None for number in range(FILES_MAX)})
    lines = list(lost_saves(tmp_path))
    assert len(lines) == FILES_MAX + 1 and lines[-1] == f"more than {FILES_MAX} saves are lost"
