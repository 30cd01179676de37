"""The directory of checkpoints: what is published is whole, what is not whole is never offered."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from holdfast.trainer.checkpoint.errors import CheckpointError, CheckpointMismatch, DamagedCheckpoint
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest, CheckpointPart, encode_manifest
from holdfast.trainer.checkpoint.storage.directory import DirectoryStorage, newest_first
from holdfast.trainer.checkpoint.storage.folder import DirectoryFolder
from holdfast.trainer.checkpoint.storage.retention import Retention
from holdfast.trainer.checkpoint.storage.workplace import Owner


def publish(storage: DirectoryStorage, step: int, data: bytes = b"data" * 100) -> CheckpointManifest:
    size = storage.write(step, "rank-00000.part", [data, b"index"])
    part = CheckpointPart(name="rank-00000.part", size=size, index_offset=len(data), index_crc32=0, holds=("",))
    manifest = CheckpointManifest(step=step, generation=1, world_size=1, mesh={}, created_at=0.0, parts=(part,))
    storage.publish(manifest)
    return manifest


@pytest.fixture
def storage(tmp_path: Path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path, owner=Owner(generation=3))


def steps_in(storage: DirectoryStorage) -> list[str]:
    """What is there but the workplaces."""
    return sorted(path.name for path in storage.root.iterdir() if not path.name.startswith("generation-"))


def test_what_is_written_is_visible_only_once_published(storage: DirectoryStorage) -> None:
    storage.write(7, "rank-00000.part", [b"abc"])
    assert storage.steps() == []

    manifest = publish(storage, 7)

    assert storage.steps() == [7]
    assert storage.manifest(7) == manifest
    assert bytes(storage.read(7, "rank-00000.part", 400, 5)) == b"index"


def test_a_directory_that_does_not_exist_holds_no_steps(tmp_path: Path) -> None:
    assert DirectoryStorage(tmp_path / "none").steps() == []


def test_a_leftover_of_an_earlier_attempt_is_not_published(storage: DirectoryStorage) -> None:
    storage.write(7, "rank-00099.part", [b"from a larger world"])
    publish(storage, 7)
    assert sorted(path.name for path in (storage.root / "step-00000007").iterdir()) == [
        "manifest.json",
        "rank-00000.part",
    ]


def test_publishing_a_step_again_replaces_it(storage: DirectoryStorage) -> None:
    publish(storage, 7, b"old")
    publish(storage, 7, b"new")
    assert bytes(storage.read(7, "rank-00000.part", 0, 3)) == b"new"
    assert steps_in(storage) == ["step-00000007"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda step: (step / "rank-00000.part").write_bytes(b"short"), "has 5 bytes, the manifest says 405"),
        (lambda step: (step / "rank-00000.part").unlink(), "No such file"),
        (lambda step: (step / "manifest.json").unlink(), "manifest.json"),
        (lambda step: (step / "manifest.json").write_bytes(b'{"format":1,"st'), "cannot be read"),
        (lambda step: (step / "manifest.json").write_bytes(b"\xff\xfe\x00"), "cannot be read"),
        (lambda step: (step / "manifest.json").write_bytes(b'{"format":1,"step":"seven"}'), "cannot be read"),
    ],
)
def test_a_step_that_is_not_whole_is_damaged(storage: DirectoryStorage, damage, said) -> None:
    publish(storage, 7)
    damage(storage.root / "step-00000007")
    with pytest.raises(DamagedCheckpoint, match=said):
        storage.manifest(7)


def test_a_part_that_shrank_since_is_damaged(storage: DirectoryStorage) -> None:
    publish(storage, 7)
    with pytest.raises(DamagedCheckpoint, match=r"ends after 405 bytes, 410 are needed"):
        storage.read(7, "rank-00000.part", 400, 10)


def test_a_part_that_only_rank_0_sees_is_no_damage_but_a_directory_that_is_not_shared(
    storage: DirectoryStorage,
) -> None:
    with pytest.raises(CheckpointError, match="must be shared by all nodes") as raised:
        storage.read(7, "rank-00000.part", 0, 1)
    assert not isinstance(raised.value, DamagedCheckpoint)


def test_another_format_is_no_damage(storage: DirectoryStorage) -> None:
    publish(storage, 7)
    path = storage.root / "step-00000007" / "manifest.json"
    path.write_bytes(encode_manifest(msgspec.structs.replace(storage.manifest(7), format=9)))
    with pytest.raises(CheckpointMismatch, match="format 9"):
        storage.manifest(7)


def test_what_is_set_aside_is_kept_under_its_label(storage: DirectoryStorage) -> None:
    for _ in range(2):
        publish(storage, 7)
        storage.set_aside(7, "damaged")
    publish(storage, 8)
    storage.set_aside(8, "rolled-back")
    assert storage.steps() == []
    assert storage.damaged() == [7, 7]
    assert steps_in(storage) == [
        "step-00000007.damaged",
        "step-00000007.damaged-2",
        "step-00000008.rolled-back",
    ]


def test_retention_keeps_the_newest_and_what_living_generations_write(storage: DirectoryStorage) -> None:
    for step in (2, 4, 6, 8, 10):
        publish(storage, step)
    for step in (11, 12, 13, 14):
        publish(storage, step)
        storage.set_aside(step, "damaged")
    DirectoryStorage(storage.root, owner=Owner(generation=2)).write(9, "rank-00000.part", [b"left by the dead"])
    storage.write(12, "rank-00000.part", [b"being written"])
    DirectoryStorage(storage.root, owner=Owner(generation=4)).write(12, "rank-00000.part", [b"being written"])
    (storage.root / "notes.txt").write_text("a user's own file")

    storage.retain(Retention(2))

    assert steps_in(storage) == [
        "notes.txt",
        "step-00000008",
        "step-00000010",
        "step-00000012.damaged",
        "step-00000013.damaged",
        "step-00000014.damaged",
    ]
    assert sorted(path.name for path in storage.root.glob("generation-*/*")) == ["step-00000012", "step-00000012"]
    assert sorted(path.name for path in storage.root.glob("generation-*")) == ["generation-3", "generation-4"]


def test_of_those_set_aside_the_highest_steps_are_kept(storage: DirectoryStorage) -> None:
    for step in (99_999_997, 99_999_998, 99_999_999, 100_000_000):
        publish(storage, step)
        storage.set_aside(step, "damaged")

    storage.retain(Retention(2))

    assert sorted(storage.damaged()) == [99_999_998, 99_999_999, 100_000_000]


def test_a_medium_that_refuses_is_named_and_its_leftovers_go(storage: DirectoryStorage) -> None:
    publish(storage, 7)
    with files_limited_to(1 << 16), pytest.raises(CheckpointError, match=r"step-00000008.*File too large") as raised:
        storage.write(8, "rank-00000.part", [bytes(1 << 17)])
    assert isinstance(raised.value.__cause__, OSError) and raised.value.__cause__.errno == errno.EFBIG

    storage.discard(8)

    assert steps_in(storage) == ["step-00000007"]


@pytest.mark.parametrize(
    ("published", "at_most", "expected"),
    [
        ([], None, []),
        ([10, 30, 20], None, [30, 20, 10]),
        ([10, 30, 20], 20, [20, 10]),
        ([10, 30, 20], 25, [20, 10]),
        ([10, 30, 20], 5, []),
        ([10, 30, 20], 0, []),
    ],
)
def test_the_newest_step_comes_first_and_none_after_the_target(published, at_most, expected) -> None:
    assert newest_first(published, at_most) == expected


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_cannot_be_read_here_is_no_damage(storage: DirectoryStorage) -> None:
    step = storage.root / "step-00000007"
    publish(storage, 7)
    (step / "rank-00000.part").unlink()
    # Where nothing is mapped, the kernel gives EIO, as a disk does that fails.
    (step / "rank-00000.part").symlink_to("/proc/self/mem")
    with pytest.raises(CheckpointError, match="cannot be read: Input/output error") as raised:
        storage.read(7, "rank-00000.part", 0, 1)
    assert not isinstance(raised.value, DamagedCheckpoint)


def test_a_file_that_goes_while_its_folder_is_listed_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"abc")
    # As a file that was listed and is gone when its size is asked for.
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert DirectoryFolder(tmp_path).sizes() == {"part": 3}
    with pytest.raises(DamagedCheckpoint):
        DirectoryFolder(tmp_path / "nowhere").sizes()
