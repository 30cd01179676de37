"""A failing disk: a directory of a node on a real block device that can no longer be read or written.

The device is a file (loop) with a new file system and a copy of the directory. Then the file is truncated and the
device updated: access to data that is not in memory fails with EIO, as with a lost medium. The kernel logs real errors
for the device, which holds nothing of another node.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from holdfast.faults import mount_namespaces
from holdfast.faults.fault import Fault, FaultRefused, FaultScope, FaultStep
from holdfast.faults.kinds.disk import DiskOptions, directory_apart
from holdfast.faults.requirements import Requirement
from holdfast.faults.target import FaultTarget, TargetProcess
from holdfast.symptoms import Symptom

ROOM_BYTES = 256 << 20
"""Free space of the new disk; its file is sparse."""
CONTENT_BYTES_MAX = 1 << 30


class FailingDisk(FaultStep, frozen=True, kw_only=True, tag="failing_disk"):
    """The directory on a separate disk, `image`, that fails as soon as it is mounted."""

    directory: str
    image: str
    processes: tuple[TargetProcess, ...]

    def do(self) -> None:
        image = Path(self.image)
        image.parent.mkdir(parents=True, exist_ok=True)
        content_bytes = sum(_sizes(Path(self.directory)))
        if content_bytes > CONTENT_BYTES_MAX:
            raise FaultRefused(
                f"{self.directory} holds {content_bytes >> 20} MiB, which would have to be copied: name a directory "
                f"with {CONTENT_BYTES_MAX >> 20} MiB at most with -o path=..."
            )
        with image.open("wb") as file:
            file.truncate(content_bytes + ROOM_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", self.image)
        _run("losetup", "--find", self.image)
        (device,) = self._devices()
        self._copying.mkdir()
        mount_namespaces.mount(device, self._copying, "ext4")
        _copy(Path(self.directory), self._copying)
        mount_namespaces.unmount(self._copying, device)
        mount_namespaces.where_seen_by(
            self.processes,
            lambda: mount_namespaces.mount(device, Path(self.directory), "ext4", data="errors=remount-ro"),
        )
        image.open("wb").close()
        _run("losetup", "--set-capacity", device)

    def undo(self) -> None:
        for device in self._devices():
            mount_namespaces.unmount(self._copying, device)
            mount_namespaces.unmount(Path(self.directory), device)
            _run("losetup", "--detach", device)
        shutil.rmtree(Path(self.image).parent, ignore_errors=True)

    @property
    def _copying(self) -> Path:
        return Path(self.image).with_name("content")

    def _devices(self) -> list[str]:
        """Return the loop devices of the image; several if a first attempt was interrupted."""
        return _run("losetup", "--noheadings", "--output", "NAME", "--associated", self.image).split()


def _fails(aim: FaultTarget, options: DiskOptions) -> tuple[FaultStep, ...]:
    directory, image = str(directory_apart(aim, options)), str(aim.place / "disk")
    return (FailingDisk(directory=directory, image=image, processes=aim.processes()),)


def _sizes(directory: Path) -> Iterator[int]:
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # Files removed meanwhile are not copied.
                yield os.lstat(os.path.join(parent, name)).st_size


def _copy(source: Path, target: Path) -> None:
    """Copy the files; other processes continue to write there."""

    def copy(one: str, other: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(one, other)

    with contextlib.suppress(shutil.Error):
        shutil.copytree(source, target, symlinks=True, copy_function=copy, dirs_exist_ok=True)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


FAULTS = (
    Fault(
        "disk-fails",
        Symptom.DISK_FAULT,
        FaultScope.NODE,
        "the disk below a directory gives I/O errors (EIO), and the kernel logs them",
        _fails,
        needs=(Requirement.MOUNT, Requirement.LOOP),
        options=DiskOptions,
        undo="it is unmounted, and what was there is back",
    ),
)
