"""Ledgers in shared memory that a kill has left are freed; those of living agents and zygotes never are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.ledger.ledger_reader import LedgerReader
from holdfast_agent.files import ledger_memory
from holdfast_agent.files.directories import Directories
from holdfast_agent.files.ledger_memory import ABANDONED_S, CHECKS_ABANDONED_S, LedgerMemory, free_abandoned

HOLD = """
import sys
from pathlib import Path
from holdfast_agent.files import ledger_memory
ledger_memory.SHARED_MEMORY = Path(sys.argv[1])
ledger_memory.LedgerMemory(Path(sys.argv[2])).hold()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(ledger_memory, "SHARED_MEMORY", folder)
    return folder


@pytest.fixture
def holder(memory: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the memory of the state directory `node`."""
    (tmp_path / "node").mkdir()
    LedgerMemory(tmp_path / "node").path.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(memory), str(tmp_path / "node")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def grow_old(folder: Path) -> None:
    lock = folder / ".held"
    then = lock.stat().st_mtime - ABANDONED_S - 1
    os.utime(lock, (then, then))


def test_only_what_nobody_holds_for_a_while_is_freed(
    memory: Path, tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    folder = LedgerMemory(tmp_path / "node").path
    grow_old(folder)
    assert free_abandoned(memory) == 0
    holder.kill()
    holder.wait()
    os.utime(folder / ".held")
    assert free_abandoned(memory) == 0
    grow_old(folder)
    foreign = memory / f"holdfast-{os.getuid()}-unknown"
    foreign.mkdir()
    assert free_abandoned(memory) == 1
    assert list(memory.iterdir()) == [foreign]


def test_what_killed_checks_left_is_freed_after_a_day(memory: Path) -> None:
    new, old, theirs = (memory / f"holdfast-checks-{name}" for name in ("new", "old", "theirs"))
    for folder in (new, old, theirs):
        folder.mkdir()
        (folder / "store").touch()
    day_ago = time.time() - CHECKS_ABANDONED_S - 1
    os.utime(old, (day_ago, day_ago))
    theirs.rename(memory / "aside")
    theirs.symlink_to(memory / "aside")
    os.utime(theirs, (day_ago, day_ago), follow_symlinks=False)
    assert free_abandoned(memory) == 1
    assert new.exists() and not old.exists() and theirs.is_symlink()


def test_what_another_user_has_put_there_is_neither_opened_nor_used(memory: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory of another user")
    theirs = memory / f"holdfast-{os.getuid()}-theirs"
    theirs.mkdir()
    os.mkfifo(theirs / "opened")
    (theirs / ".held").symlink_to("opened")
    os.utime(theirs / "opened", (0, 0))
    os.chown(theirs, 12_345, 12_345)
    assert free_abandoned(memory) == 0 and theirs.exists()
    (tmp_path / "node").mkdir()
    ours = LedgerMemory(tmp_path / "node")
    ours.path.mkdir()
    os.chown(ours.path, 12_345, 12_345)
    with pytest.raises(PermissionError, match="user 12345 has made it"):
        ours.make()
    ours.path.rmdir()
    ours.path.symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        ours.make()
    ours.path.unlink()
    assert ours.make() == ours.make() == ours.path


def test_of_ones_own_only_a_lock_that_is_no_link_counts(memory: Path, tmp_path: Path) -> None:
    ours = memory / f"holdfast-{os.getuid()}-ours"
    ours.mkdir()
    (tmp_path / "file").touch()
    os.utime(tmp_path / "file", (0, 0))
    (ours / ".held").symlink_to(tmp_path / "file")
    assert free_abandoned(memory) == 0


def test_ledgers_lie_on_the_disk_while_memory_is_full(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = Directories(tmp_path / "node")
    directories.prepare()
    directories.begin_generation("j", (1, 1))
    held = [LedgerReader(_begun(directories, (1, 1)), 0)]
    monkeypatch.setattr(ledger_memory, "ROOM_BYTES", 1 << 60)
    # Its ranks live on: an agent that starts again leaves their ledgers where they are.
    Directories(tmp_path / "node").prepare()
    assert directories.ledger("j", (1, 1), 0).resolve().is_relative_to(memory)
    directories.begin_generation("j", (1, 2))
    path = _begun(directories, (1, 2))
    assert not path.resolve().is_relative_to(memory)
    held.append(LedgerReader(path, 0))
    monkeypatch.setattr(ledger_memory, "ROOM_BYTES", 0)
    Directories(tmp_path / "node").prepare()
    assert path.exists() and not path.resolve().is_relative_to(memory)
    directories.begin_generation("j", (1, 3))
    assert _begun(directories, (1, 3)).resolve().is_relative_to(memory)
    # Who reads a ledger already goes on.
    assert [reader.snapshot().step for reader in held] == [-1, -1]
    directories.forget_ledgers()
    assert list(memory.iterdir()) == []


def _begun(directories: Directories, fence: tuple[int, int]) -> Path:
    path = directories.ledger("j", fence, 0)
    LedgerWriter(path, rank=0, generation=fence[1])
    return path
