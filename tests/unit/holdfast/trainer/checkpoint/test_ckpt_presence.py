"""Jobs that share a directory without knowing of each other: the first that writes has it for as long as it lives."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path

import msgspec
import pytest

from holdfast.trainer.checkpoint import Checkpointer
from holdfast.trainer.checkpoint.errors import DirectoryTaken
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest, CheckpointPart
from holdfast.trainer.checkpoint.storage import directory, presence
from holdfast.trainer.checkpoint.storage.directory import VAULT, DirectoryStorage
from holdfast.trainer.checkpoint.storage.presence import Writer
from holdfast.trainer.checkpoint.storage.retention import Retention
from holdfast.trainer.checkpoint.storage.workplace import Owner, Workplace

MINE, OTHER = Owner("mine", 1000, 1), Owner("other", 2000, 1)
FILE = Path(MINE.name, presence.NAME)


def save(storage: DirectoryStorage, step: int) -> None:
    storage.write(step, "rank-00000.part", [b"data"])
    part = CheckpointPart(name="rank-00000.part", size=4, index_offset=4, index_crc32=0, holds=("",))
    storage.publish(CheckpointManifest(step=step, generation=1, world_size=1, mesh={}, created_at=0.0, parts=(part,)))


def _write_and_wait(root: Path, owner: Owner, began: object) -> None:
    storage = DirectoryStorage(root, owner=owner)
    storage.hold()
    save(storage, 100)
    began.set()  # type: ignore[attr-defined]
    signal.pause()


@contextmanager
def living(root: Path, owner: Owner = MINE) -> Iterator[int]:
    """A process of a job that has written step 100; yields its pid."""
    context = get_context("fork")
    began = context.Event()
    process = context.Process(target=_write_and_wait, args=(root, owner, began))
    process.start()
    try:
        assert began.wait(60)
        assert process.pid is not None
        yield process.pid
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("other", [OTHER, Owner("mine", 2000, 1)], ids=["another name", "the same name"])
def test_a_job_removes_and_replaces_nothing_where_another_one_writes(tmp_path: Path, other: Owner) -> None:
    with living(tmp_path) as pid:
        late = DirectoryStorage(tmp_path, owner=other)
        for change in (
            late.hold,
            lambda: save(late, 100),
            lambda: late.retain(Retention(1)),
            lambda: late.set_aside(100, "damaged"),
            lambda: DirectoryStorage(tmp_path, owner=other, prefix=VAULT).write(1, "a", [b""]),
        ):
            with pytest.raises(DirectoryTaken, match=rf"job mine writes .* \(process {pid} on .*--job-dir"):
                change()
        first = DirectoryStorage(tmp_path, owner=MINE)
        save(first, 101)
        assert sorted(first.steps()) == [100, 101]
        if other.job != "mine":
            late.claim()
            assert late.manifest(100).step == 100, "what another job writes may be read, as by an evaluation"
    late.hold()
    save(late, 102)
    late.retain(Retention(2))
    assert sorted(late.steps()) == [101, 102]


def test_a_process_that_stands_still_has_its_directory(tmp_path: Path) -> None:
    with living(tmp_path) as pid:
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(DirectoryTaken):
            DirectoryStorage(tmp_path, owner=OTHER).hold()


def test_the_next_generation_and_the_vaults_of_a_job_go_on(tmp_path: Path) -> None:
    with living(tmp_path):
        save(DirectoryStorage(tmp_path, owner=MINE), 101)
        DirectoryStorage(tmp_path, owner=MINE, prefix=VAULT).write(102, "a", [b""])
        successor = DirectoryStorage(tmp_path, owner=MINE._replace(generation=2))
        successor.hold()
        save(successor, 103)


def test_who_lost_the_directory_while_away_changes_nothing_when_it_is_back(tmp_path: Path) -> None:
    os.utime(_left(tmp_path), (0, 0))
    away = DirectoryStorage(tmp_path, owner=MINE)
    save(away, 1)
    with living(tmp_path, OTHER):
        for change in (lambda: save(away, 2), lambda: away.retain(Retention(1)), lambda: away.set_aside(1, "damaged")):
            with pytest.raises(DirectoryTaken, match="job other writes"):
                change()
        vault = DirectoryStorage(tmp_path, owner=MINE, prefix=VAULT)
        with pytest.raises(DirectoryTaken, match="job other writes"):
            vault.write(2, "a", [b""])
        assert sorted(away.steps()) == [1, 100]


def _is_of_another_machine(root: Path) -> Path:
    """Have the file look like one of a process elsewhere; nobody touches it."""
    file = root / FILE
    content = msgspec.json.decode(file.read_bytes(), type=Writer)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(content, machine="another")))
    return file


def _left(root: Path) -> Path:
    """The file of a job that was killed on another machine a moment ago."""
    with living(root):
        pass
    return _is_of_another_machine(root)


def test_a_job_of_another_machine_that_was_killed_is_waited_for_no_longer_than_its_silence_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "STALE_S", 1.0)
    _left(tmp_path)
    DirectoryStorage(tmp_path, owner=OTHER).hold()


def test_a_job_of_another_machine_is_known_by_its_beats(tmp_path: Path) -> None:
    file, ended = _left(tmp_path), threading.Event()

    def beat() -> None:
        while not ended.wait(0.1):
            os.utime(file)

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(DirectoryTaken):
            DirectoryStorage(tmp_path, owner=OTHER).hold()
    finally:
        ended.set()
        beating.join()


@pytest.mark.parametrize("ahead_s", [-365 * 86400, 365 * 86400])
def test_a_clock_that_jumped_a_year_leaves_a_directory_to_the_living(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    monkeypatch.setattr(presence, "STALE_S", 1.0)
    file = _left(tmp_path)
    there = file.stat().st_mtime + ahead_s
    os.utime(file, (there, there))
    DirectoryStorage(tmp_path, owner=OTHER).hold()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 5000, b'{"pid": 1}'])
def test_nonsense_in_its_place_holds_nobody_up(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_bytes(content)
    DirectoryStorage(tmp_path, owner=OTHER).hold()
    shutil.rmtree(tmp_path / FILE.parent, ignore_errors=True)
    (tmp_path / FILE).parent.mkdir()
    os.mkfifo(tmp_path / FILE)
    DirectoryStorage(tmp_path, owner=OTHER._replace(generation=2)).hold()


def test_a_copied_directory_is_free(tmp_path: Path) -> None:
    with living(tmp_path / "first"):
        shutil.copytree(tmp_path / "first", tmp_path / "copy")
        copy = DirectoryStorage(tmp_path / "copy", owner=OTHER)
        copy.hold()
        save(copy, 101)


@pytest.mark.parametrize("by", ["keep", "save"])
def test_a_job_is_refused_at_its_first_step_and_a_restore_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setenv("HOLDFAST_JOB", "other")
    state = {"x": 1}
    with living(tmp_path / "checkpoints"):
        checkpointer = Checkpointer(tmp_path / "checkpoints")
        with suppress(DirectoryTaken.__base__):  # the other job's step is no checkpoint of this state
            checkpointer.restore(state)
        with pytest.raises(DirectoryTaken):
            getattr(checkpointer, by)(1, state)
    assert getattr(checkpointer, by)(1, state) in (None, False)


def test_an_orderly_end_leaves_no_file_and_that_of_a_child_does(tmp_path: Path) -> None:
    script = f"""
import os
from pathlib import Path
from holdfast.trainer.checkpoint.storage.directory import DirectoryStorage
from holdfast.trainer.checkpoint.storage.workplace import Owner, Workplace
DirectoryStorage({str(tmp_path)!r}, owner=Owner(*{tuple(MINE)!r})).hold()
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert Path({str(tmp_path / FILE)!r}).exists()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (tmp_path / FILE).parent.is_dir() and not (tmp_path / FILE).exists()


def test_a_job_that_began_while_the_disk_was_full_has_its_directory_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Workplace) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    storage = DirectoryStorage(tmp_path, owner=MINE)
    with monkeypatch.context() as patched:
        patched.setattr(Workplace, "_make", full)
        patched.setattr(directory, "HOLD_AGAIN_S", 0.0)
        storage.hold()
    storage.hold()
    save(storage, 100)
    with pytest.raises(DirectoryTaken):
        DirectoryStorage(tmp_path, owner=OTHER).hold()
