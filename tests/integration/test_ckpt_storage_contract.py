"""What every storage of checkpoints promises, tried on each: a directory, filesystems of fsspec, the protocol of S3."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest

from holdfast.trainer.checkpoint.errors import (
    CheckpointError,
    CheckpointMismatch,
    DamagedCheckpoint,
    DirectoryTaken,
    Superseded,
)
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest, CheckpointPart
from holdfast.trainer.checkpoint.objects.object_presence import ObjectPresence
from holdfast.trainer.checkpoint.objects.object_store import PIECE_BYTES, ObjectStorage
from holdfast.trainer.checkpoint.storage.directory import VAULT, DirectoryStorage, Storage
from holdfast.trainer.checkpoint.storage.folder import StepState
from holdfast.trainer.checkpoint.storage.places import open_storage
from holdfast.trainer.checkpoint.storage.retention import Retention
from holdfast.trainer.checkpoint.storage.workplace import UNFENCED, Owner

pytestmark = pytest.mark.integration

Opener = Callable[..., Storage]
PART = "rank-00000.part"
names = itertools.count()


def directory(tmp_path: Path) -> Opener:
    return partial(DirectoryStorage, tmp_path)


def memory(tmp_path: Path) -> Opener:
    url = f"memory://contract-{next(names)}/checkpoints"
    return partial(open_storage, url)


def files(tmp_path: Path) -> Opener:
    # `open_storage` makes a directory of file://, but the store of objects has to work on any filesystem of fsspec.
    filesystem = fsspec.filesystem("file", auto_mkdir=True)
    return partial(ObjectStorage, filesystem, str(tmp_path), f"file://{tmp_path}")


@pytest.fixture(params=["directory", "memory", "files", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    if request.param == "s3":
        url = f"{request.getfixturevalue('bucket')}/contract-{next(names)}"
        return partial(open_storage, url)
    return {"directory": directory, "memory": memory, "files": files}[request.param](tmp_path)


def manifest(step: int, size: int, **changed: Any) -> CheckpointManifest:
    part = CheckpointPart(name=PART, size=size, index_offset=size, index_crc32=0, holds=("",))
    told = {"step": step, "generation": 1, "world_size": 1, "mesh": {}, "created_at": 0.0, "parts": (part,)} | changed
    return CheckpointManifest(**told)


def save(storage: Storage, step: int, data: bytes = b"data") -> CheckpointManifest:
    size = storage.write(step, PART, [data])
    saved = manifest(step, size)
    storage.publish(saved)
    return saved


def content(storage: Storage, step: int) -> bytes:
    (part,) = storage.manifest(step).parts
    return bytes(storage.read(step, part.name, 0, part.size))


def found(storage: Storage) -> list[tuple[int, str]]:
    return sorted((it.step, it.state.value) for it in storage.survey())


def test_nothing_is_there_before_anything_was_written(opened: Opener) -> None:
    storage = opened(owner=UNFENCED)
    assert (storage.steps(), storage.damaged(), storage.survey()) == ([], [], [])


def test_what_is_written_is_visible_only_once_published(opened: Opener) -> None:
    storage = opened(owner=UNFENCED)
    assert storage.write(7, PART, [b"da", b"", memoryview(b"ta")]) == 4
    assert storage.steps() == []
    assert found(storage) == [(7, "unfinished")]
    saved = manifest(7, 4)
    storage.publish(saved)
    assert storage.steps() == [7]
    assert opened(owner=UNFENCED).manifest(7) == saved
    piece = storage.read(7, PART, 1, 2)
    assert bytes(piece) == b"at" and not piece.readonly
    assert found(storage) == [(7, "complete")]


def test_publishing_a_step_again_replaces_it(opened: Opener) -> None:
    storage = opened(owner=UNFENCED)
    save(storage, 7, b"first")
    storage.write(7, PART, [b"second, unpublished"])
    assert content(storage, 7) == b"first"
    storage.publish(manifest(7, 19))
    assert content(storage, 7) == b"second, unpublished"
    assert found(storage) == [(7, "complete")]


def test_a_job_changes_nothing_where_another_one_writes(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    # This process lives; without further beats nothing of it is left when the stores are gone.
    monkeypatch.setattr(ObjectPresence, "begin", ObjectPresence.write)
    first, late = opened(owner=Owner("mine", 1, 1)), opened(owner=Owner("other", 2, 1))
    late.claim()
    hold(first)
    save(first, 7)
    changes: list[Callable[[], object]] = [
        partial(hold, late),
        partial(save, late, 7, b"others"),
        partial(late.retain, Retention(1)),
        partial(late.set_aside, 7, "damaged"),
    ]
    for change in changes:
        with pytest.raises(DirectoryTaken, match=r"job mine writes its checkpoints to .* too"):
            change()
    assert content(late, 7) == b"data", "what another job writes may be read, as by an evaluation"
    save(opened(owner=Owner("mine", 1, 1), prefix=VAULT), 8)
    again = opened(owner=Owner("mine", 1, 2))
    hold(again)
    save(again, 9)
    assert sorted(again.steps()) == [7, 8, 9]


def hold(storage: Storage) -> None:
    assert isinstance(storage, DirectoryStorage | ObjectStorage)
    storage.hold()


def test_leftovers_of_an_attempt_are_neither_published_nor_kept(opened: Opener) -> None:
    storage = opened(owner=UNFENCED)
    storage.write(7, "rank-00099.part", [b"of a larger world"])
    save(storage, 7)
    (only,) = storage.survey()
    assert set(only.folder.sizes()) == {"manifest.json", PART}
    storage.write(8, PART, [b"data"])
    storage.discard(8)
    storage.discard(9)
    assert found(storage) == [(7, "complete")]


def test_an_older_step_survives_a_write_that_fails(opened: Opener) -> None:
    storage = opened(owner=UNFENCED)
    save(storage, 7)

    def breaks() -> Any:
        yield b"some"
        raise RuntimeError("the state cannot be read")

    for step in (7, 8):
        with pytest.raises(RuntimeError, match="cannot be read"):
            storage.write(step, PART, breaks())
    assert storage.steps() == [7]
    assert content(storage, 7) == b"data"


def test_more_than_one_piece_goes_in_and_comes_out(opened: Opener) -> None:
    storage = opened(owner=UNFENCED)
    data = bytes(range(256)) * (PIECE_BYTES // 256) + b"the end"
    save(storage, 7, data)
    assert content(storage, 7) == data
    assert bytes(storage.read(7, PART, PIECE_BYTES - 3, 10)) == data[-10:]


def test_what_is_set_aside_is_kept_and_not_offered(opened: Opener) -> None:
    storage = opened(owner=UNFENCED)
    for _ in range(2):
        save(storage, 7)
        storage.set_aside(7, "damaged")
    save(storage, 8)
    storage.set_aside(8, "rolled-back")
    assert storage.steps() == []
    assert storage.damaged() == [7, 7]
    assert found(storage) == [(7, "damaged"), (7, "damaged"), (8, "rolled-back")]
    assert all(PART in it.folder.sizes() for it in storage.survey())


def test_retention_keeps_the_newest_and_a_few_that_were_set_aside(opened: Opener) -> None:
    storage = opened(owner=UNFENCED)
    for step in (2, 4, 6, 8):
        save(storage, step)
    for step in (11, 12, 13, 14):
        save(storage, step)
        storage.set_aside(step, "damaged")
    storage.retain(Retention(2))
    assert sorted(storage.steps()) == [6, 8]
    assert sorted(storage.damaged()) == [12, 13, 14]
    assert [step for step, _ in found(storage)] == [6, 8, 12, 13, 14]


def test_retention_removes_what_the_dead_left_and_nothing_of_the_living(opened: Opener) -> None:
    for generation in (2, 3, 4):
        opened(owner=Owner(generation=generation)).write(9, PART, [b"data"])
    opened(owner=Owner(generation=3)).retain(Retention(1))
    left = sorted(it.folder.name.split("generation-")[1][0] for it in opened(owner=UNFENCED).survey())
    assert left == ["3", "4"]


def test_retention_goes_by_room_too_and_never_takes_the_newest_that_is_certified(opened: Opener) -> None:
    storage = opened(owner=UNFENCED)
    for step in (1, 3, 4, 5, 6):
        save(storage, step, b"x" * 1000)
    storage.retain(Retention(steps_max=9, nbytes_max=4500, certified_up_to=2))
    assert sorted(storage.steps()) == [1, 4, 5, 6]
    storage.retain(Retention(steps_max=9, nbytes_max=10))
    assert storage.steps() == [6]


def test_what_vaults_write_is_apart_from_what_ranks_do_until_it_is_published(opened: Opener) -> None:
    ranks, vault = opened(owner=of(3)), opened(owner=of(3), prefix=VAULT)
    ranks.write(5, PART, [b"of a rank"])
    vault.write(5, "note.json", [b"{}"])
    vault.write(7, PART, [b"of a vault"])
    size = vault.write(5, PART, [b"of a vault"])
    assert (ranks.unpublished(), sorted(vault.unpublished())) == ([5], [5, 7])
    assert vault.staged(5).sizes() == {PART: size, "note.json": 2}
    assert vault.staged(5).get("note.json") == b"{}"
    assert (5, "unfinished") in found(opened(owner=UNFENCED))
    vault.publish(manifest(5, size))
    assert content(ranks, 5) == b"of a vault"
    assert (ranks.unpublished(), vault.unpublished()) == ([5], [7])
    assert vault.staged(7).sizes() == {PART: size}
    vault.discard(7)
    assert vault.unpublished() == []
    opened(owner=of(4)).claim()
    for name in (ranks, vault):
        with pytest.raises(Superseded):
            name.write(9, PART, [b"late"])


def test_a_part_that_is_gone_or_cut_is_damage(opened: Opener) -> None:
    storage = opened(owner=UNFENCED)
    size = storage.write(7, PART, [b"data"])
    storage.publish(manifest(7, size + 1))
    with pytest.raises(DamagedCheckpoint, match="has 4 bytes, the manifest says 5"):
        storage.manifest(7)
    with pytest.raises(DamagedCheckpoint, match="ends after 4 bytes, 5 are needed"):
        storage.read(7, PART, 0, 5)
    other = CheckpointPart(name="rank-00001.part", size=1, index_offset=1, index_crc32=0, holds=())
    storage.write(8, PART, [b"data"])
    storage.publish(manifest(8, 4, parts=(manifest(8, 4).parts[0], other)))
    with pytest.raises(DamagedCheckpoint, match=r"rank-00001\.part.*No such file"):
        storage.manifest(8)


def test_another_format_is_no_damage(opened: Opener) -> None:
    storage = opened(owner=UNFENCED)
    storage.write(7, PART, [b"data"])
    storage.publish(manifest(7, 4, format=9))
    with pytest.raises(CheckpointMismatch, match="format 9"):
        storage.manifest(7)


CHANGES: dict[str, Callable[[Storage], object]] = {
    "write": lambda old: old.write(3, PART, [b"data"]),
    "publish": lambda old: old.publish(manifest(2, 4)),
    "replace": lambda old: old.publish(manifest(1, 4)),
    "retain": lambda old: old.retain(Retention(1)),
    "set aside": lambda old: old.set_aside(1, "damaged"),
    "claim": lambda old: old.claim(),
}


def of(generation: int, *, job: str = "job", submitted_ms: int = 1000) -> Owner:
    return Owner(job, submitted_ms, generation)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_who_was_replaced_is_refused_and_changes_nothing_that_others_see(
    opened: Opener, change: Callable[[Storage], object]
) -> None:
    old, new = opened(owner=of(7)), opened(owner=of(8))
    save(old, 0)
    save(old, 1)
    for step in (1, 2):
        old.write(step, PART, [b"new!"])
    new.claim()
    with pytest.raises(Superseded, match=r"generation 8 of job job .* generation 7"):
        change(old)
    assert {step: content(new, step) for step in new.steps()} == {0: b"data", 1: b"data"}
    assert new.damaged() == []


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_who_comes_late_is_refused_too(opened: Opener, change: Callable[[Storage], object]) -> None:
    new = opened(owner=of(8))
    save(new, 1)
    with pytest.raises(Superseded):
        change(opened(owner=of(7)))
    assert {step: content(new, step) for step in new.steps()} == {1: b"data"}


def test_only_later_generations_of_the_same_job_take_over(opened: Opener) -> None:
    save(opened(owner=of(8)), 1)
    save(opened(owner=of(1, job="other")), 2)
    save(opened(owner=of(1, submitted_ms=2000)), 3)
    save(opened(owner=UNFENCED), 4)
    with pytest.raises(Superseded):
        save(opened(owner=of(9)), 5)
    save(opened(owner=of(2, job="other")), 6)
    assert sorted(opened(owner=UNFENCED).steps()) == [1, 2, 3, 4, 6]


def test_the_next_generation_goes_on_from_what_the_last_one_published(opened: Opener) -> None:
    save(opened(owner=of(7)), 1)
    opened(owner=of(7)).write(2, PART, [b"left"])
    new = opened(owner=of(8))
    new.claim()
    assert content(new, 1) == b"data"
    save(new, 2, b"anew")
    new.retain(Retention(3))
    assert found(new) == [(1, "complete"), (2, "complete")]
    assert content(new, 2) == b"anew"


def test_survey_tells_each_state(opened: Opener) -> None:
    storage = opened(owner=of(3))
    for step in (1, 2, 3):
        save(storage, step)
    storage.set_aside(2, "damaged")
    storage.set_aside(3, "rolled-back")
    storage.write(4, PART, [b"data"])
    by_step = {it.step: it for it in storage.survey()}
    assert {step: it.state for step, it in by_step.items()} == {
        1: StepState.COMPLETE,
        2: StepState.DAMAGED,
        3: StepState.ROLLED_BACK,
        4: StepState.UNFINISHED,
    }
    assert by_step[4].folder.sizes() == {PART: 4}
    assert by_step[1].folder.modified_at() is not None


def test_reading_what_is_not_there_is_refused_in_words(opened: Opener) -> None:
    with pytest.raises(CheckpointError, match="8"):
        opened(owner=UNFENCED).read(8, PART, 0, 1)
