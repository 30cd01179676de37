"""Disks that `holdfast inject` fills, takes away, or has fail, by the kernel's own means."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults_scene import WITHIN_S, cluster_files, inject, state_of, undo, until

from holdfast.embedded.layout import ClusterLayout
from holdfast.faults.fault import FaultRefused

pytestmark = pytest.mark.integration


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[ClusterLayout]:
    with cluster_files(tmp_path / "cluster") as made:
        yield made


@pytest.mark.parametrize(
    ("name", "message"),
    [("disk-full", "No space left"), ("inodes-full", "No space left"), ("read-only", "Read-only file system")],
)
def test_nothing_more_can_be_written_and_what_was_there_is_there(
    layout: ClusterLayout, name: str, message: str
) -> None:
    directory = layout.node("node-0")
    (directory / "old").write_text("old")
    (directory / "folder" / "inner").mkdir(parents=True)
    inject(layout, name)
    with pytest.raises(OSError, match=message):
        (directory / "new").write_bytes(bytes(100_000))
    if name == "disk-full":
        # It takes no room.
        (directory / "folder").rename(directory / "moved")
    assert (directory / "old").read_text() == "old"
    at = os.statvfs(directory)
    assert name == "read-only" or at.f_bavail == 0 or at.f_ffree == 0
    undo(layout)
    (directory / "new").write_bytes(bytes(100_000))
    assert sorted(path.name for path in directory.iterdir()) == ["folder", "new", "old"]


def test_a_file_system_is_not_there(layout: ClusterLayout) -> None:
    directory = layout.node("node-0")
    (directory / "old").touch()
    inject(layout, "unmounted")
    assert not list(directory.iterdir())
    undo(layout)
    assert list(directory.iterdir())


def write_through(path: Path) -> None:
    with path.open("w") as file:
        file.write("x")
        file.flush()
        os.fsync(file.fileno())


def test_a_disk_fails_below_a_directory(layout: ClusterLayout) -> None:
    directory = layout.node("node-0")
    (directory / "folder").mkdir()
    (directory / "folder" / "old").write_text("what was there")
    inject(layout, "disk-fails")
    with pytest.raises(OSError, match="Input/output error"):
        (directory / "folder" / "old").read_text()
    with pytest.raises(OSError, match=r"Input/output error|Read-only file system"):
        write_through(directory / "new")
    undo(layout)
    assert (directory / "folder" / "old").read_text() == "what was there"
    assert not (directory / "new").exists()


def test_a_disk_is_not_copied_that_holds_the_cluster(layout: ClusterLayout) -> None:
    with pytest.raises(FaultRefused, match="holds the cluster's own directory"):
        inject(layout, "disk-fails", path=str(layout.root))


def test_a_file_system_does_not_answer(layout: ClusterLayout) -> None:
    directory = layout.node("node-0")
    (directory / "old").touch()
    inject(layout, "mount-hangs")
    with subprocess.Popen(("ls", str(directory)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as looking:
        until("it waits inside the kernel", lambda: state_of(looking.pid) in ("S", "D"))
        with pytest.raises(subprocess.TimeoutExpired):
            looking.wait(0.2)
        undo(layout)
        assert looking.wait(WITHIN_S) != 0
    assert [path.name for path in directory.iterdir()] == ["old"]
