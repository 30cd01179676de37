"""Jobs that share a place in an object store without knowing of each other: the first that writes has it."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from holdfast.trainer.checkpoint.errors import DirectoryTaken
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest, CheckpointPart
from holdfast.trainer.checkpoint.objects import object_presence
from holdfast.trainer.checkpoint.objects.object_store import ObjectStorage
from holdfast.trainer.checkpoint.storage.presence import Writer
from holdfast.trainer.checkpoint.storage.retention import Retention
from holdfast.trainer.checkpoint.storage.workplace import Owner

MINE, OTHER, LATER = Owner("mine", 1000, 1), Owner("other", 2000, 1), Owner("mine", 2000, 1)


def storage(root: Path, owner: Owner) -> ObjectStorage:
    return ObjectStorage(fsspec.filesystem("file", auto_mkdir=True), str(root), f"file://{root}", owner=owner)


def save(place: ObjectStorage, step: int) -> None:
    place.write(step, "rank-00000.part", [b"data"])
    part = CheckpointPart(name="rank-00000.part", size=4, index_offset=4, index_crc32=0, holds=("",))
    place.publish(CheckpointManifest(step=step, generation=1, world_size=1, mesh={}, created_at=0.0, parts=(part,)))


def _write_and_wait(root: Path, began: object, is_orderly: bool) -> None:
    place = storage(root, MINE)
    place.hold()
    save(place, 100)
    began.set()  # type: ignore[attr-defined]
    if is_orderly:
        atexit._run_exitfuncs()
    else:
        signal.pause()


@contextmanager
def living(root: Path, *, is_orderly: bool = False) -> Iterator[int]:
    """A process of a job that has written step 100; yields its pid. It is killed, or ends in order."""
    context = get_context("fork")
    began = context.Event()
    process = context.Process(target=_write_and_wait, args=(root, began, is_orderly))
    process.start()
    try:
        assert began.wait(60) and process.pid is not None
        yield process.pid
    finally:
        if not is_orderly:
            process.kill()
        process.join()


@pytest.mark.parametrize("late", [OTHER, LATER], ids=["another name", "the same name"])
def test_a_job_is_refused_while_another_one_lives_and_goes_on_from_its_steps_once_it_was_killed(
    tmp_path: Path, late: Owner
) -> None:
    with living(tmp_path) as pid:
        place = storage(tmp_path, late)
        with pytest.raises(DirectoryTaken, match=rf"job mine writes .* \(process {pid} on .*--job-dir"):
            place.hold()
        if late.job == "mine":
            with pytest.raises(DirectoryTaken):
                place.claim()
        save(storage(tmp_path, MINE), 101)
    place.hold()
    save(place, 102)
    place.retain(Retention(2))
    assert sorted(place.steps()) == [101, 102]
    # It was stopped, and is back.
    back = storage(tmp_path, MINE)
    with pytest.raises(DirectoryTaken if late is OTHER else Exception):
        save(back, 103)
    assert sorted(place.steps()) == [101, 102]


def _is_of_another_machine(root: Path) -> Path:
    """Have the object look like one of a process elsewhere."""
    file = root / "writing" / "mine.1000"
    content = msgspec.json.decode(file.read_bytes(), type=Writer)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(content, machine="another")))
    return file


def test_a_job_of_another_machine_is_known_by_its_beats(tmp_path: Path) -> None:
    with living(tmp_path):
        pass
    file = _is_of_another_machine(tmp_path)
    mine = storage(tmp_path, OTHER)
    shown = object_presence.ObjectPresence(mine._fs, str(tmp_path), OTHER)
    shown.write()

    def beat(_: float) -> None:
        content = msgspec.json.decode(file.read_bytes(), type=Writer)
        file.write_bytes(msgspec.json.encode(msgspec.structs.replace(content, beat=content.beat + 1)))

    assert shown.living(MINE, beat) is not None
    # Silent for longer than any that lives, by the store's own times.
    os.utime(file, (0, 0))
    assert shown.living(MINE, beat) is None


def test_a_silent_job_of_another_machine_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_presence, "STALE_S", 0.2)
    with living(tmp_path):
        pass
    # A clock of the store was put back since.
    os.utime(_is_of_another_machine(tmp_path), (2e9, 2e9))
    storage(tmp_path, OTHER).hold()


def test_an_orderly_end_leaves_no_object(tmp_path: Path) -> None:
    with living(tmp_path, is_orderly=True):
        pass
    assert not (tmp_path / "writing" / "mine.1000").exists()
    storage(tmp_path, OTHER).hold()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 5000, b'{"pid": 1}'])
def test_nonsense_in_its_place_holds_nobody_up(tmp_path: Path, content: bytes) -> None:
    with living(tmp_path):
        pass
    (tmp_path / "writing" / "mine.1000").write_bytes(content)
    storage(tmp_path, OTHER).hold()


class _Busy(LocalFileSystem):  # type: ignore[misc]
    """A store that once refuses a sign of life."""

    cachable = False
    refuses = True

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        if self.refuses and "/writing/" in path:
            self.refuses = False
            raise OSError("503 SlowDown")
        super().pipe_file(path, value, **options)


def test_a_store_that_was_busy_as_a_job_began_has_its_steps_all_the_same(tmp_path: Path) -> None:
    ended = storage(tmp_path, OTHER)
    ended.hold()
    save(ended, 1)
    for sign in (tmp_path / "writing").iterdir():
        sign.unlink()
    place = ObjectStorage(_Busy(auto_mkdir=True), str(tmp_path), f"file://{tmp_path}", owner=LATER)
    place.hold()
    save(place, 10)
    assert sorted(place.steps()) == [1, 10]
    with pytest.raises(DirectoryTaken, match="mine"):
        storage(tmp_path, OTHER).hold()
