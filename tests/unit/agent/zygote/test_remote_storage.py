"""Which failed operations were on a file system of another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.node.proc.mount_table import Mount
from holdfast_agent.zygote.remote_storage import storage_of

MOUNTS = {
    point: Mount(point=point, kind=kind, source=source, number="0:1", is_read_only=False)
    for point, kind, source in (
        ("/", "9p", "host"),
        ("/data", "ext4", "/dev/sdb1"),
        ("/shared", "nfs4", "fs-1:/export"),
        ("/shared/scratch", "xfs", "/dev/sdc1"),
        ("/bucket", "fuse.s3fs", "s3fs"),
    )
}


@pytest.mark.parametrize(
    ("message", "storage"),
    [
        ("[Errno 5] Input/output error: '/shared/d/tokens.bin'", "file system fs-1:/export"),
        ("[Errno 116] Stale file handle: '/shared/d'", "file system fs-1:/export"),
        ("[Errno 28] No space left on device: '/bucket/x'", "file system s3fs"),
        ("/shared/job/checkpoints cannot be read: Input/output error; check the mount", "file system fs-1:/export"),
        ("[Errno 5] Input/output error: '/shared/scratch/x'", ""),
        ("[Errno 5] Input/output error: '/data/x'", ""),
        ("[Errno 5] Input/output error: '/home/x'", ""),
        ("[Errno 5] Input/output error: 'x.bin'", "file system fs-1:/export, file system s3fs"),
        ("[Errno 5] Input/output error", "file system fs-1:/export, file system s3fs"),
        ("[Errno 2] No such file or directory: '/shared/x'", ""),
        ("[Errno 28] No space left on device", "file system fs-1:/export, file system s3fs"),
        ("[Errno 116] Stale file handle", "file system fs-1:/export, file system s3fs"),
        ("Error while deserializing header: I/O error (os error 5)", "file system fs-1:/export, file system s3fs"),
        ("CUDA error: uncorrectable ECC error encountered", ""),
    ],
)
def test_an_operation_is_on_the_file_system_that_its_path_lies_on(message: str, storage: str) -> None:
    assert storage_of(message, MOUNTS) == storage


def test_many_file_systems_are_not_all_named() -> None:
    many = {
        f"/m{number}": Mount(point=f"/m{number}", kind="nfs", source=f"s{number}:/", number="0:1", is_read_only=False)
        for number in range(9)
    }
    assert storage_of("[Errno 5] Input/output error", many).endswith(" or another")
    assert storage_of("[Errno 5] Input/output error", {}) == ""


def test_links_are_followed_on_file_systems_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/shared/data")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert storage_of(f"[Errno 5] Input/output error: '{tmp_path}/data/x'", MOUNTS) == "file system fs-1:/export"
    assert storage_of(f"[Errno 5] Input/output error: '{tmp_path}/loop/x'", MOUNTS) == ""


def test_a_message_that_a_rank_wrote_by_itself_keeps_nobody_waiting() -> None:
    """Searched as a whole, half a million characters took forty minutes."""
    assert storage_of("/x" * (250 << 10), MOUNTS) == ""
