"""Disks that are full, have no inodes left, cannot be written, are gone, or do not answer.

Each is mounted over one directory and changes nothing below. A process that has a file open continues with the file
underneath; a process that opens one meets the fault. A full disk is a tiny file system mounted over the directory
(overlayfs): existing files can be read, and nothing more can be written.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
from pathlib import Path
from typing import Literal

from holdfast.faults import mount_namespaces
from holdfast.faults.fault import Fault, FaultOptions, FaultRefused, FaultScope, FaultStep
from holdfast.faults.helpers import READY, Helper
from holdfast.faults.requirements import Requirement
from holdfast.faults.target import FaultTarget, TargetProcess
from holdfast.symptoms import Symptom

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SPACE = "64m"
_INODES_OF_OVERLAY = 16


class Overlay(FaultStep, frozen=True, kw_only=True, tag="overlay"):
    """The directory as it is, under a layer in memory that has no bytes or no inodes to give, or refuses writes."""

    mark: str
    directory: str
    scratch: str
    without: Literal["bytes", "inodes", "writes"]
    processes: tuple[TargetProcess, ...]

    def do(self) -> None:
        mount_namespaces.where_seen_by(self.processes, self._cover)

    def undo(self) -> None:
        mount_namespaces.unmount(Path(self.directory), self.mark)
        mount_namespaces.unmount(Path(self.scratch), self.mark)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _cover(self) -> None:
        upper = Path(self.scratch)
        upper.mkdir(parents=True, exist_ok=True)
        room = f"size={_SPACE},nr_inodes={_INODES_OF_OVERLAY}" if self.without == "inodes" else f"size={_PAGE_BYTES}"
        mount_namespaces.mount(self.mark, upper, "tmpfs", data=f"mode=0700,{room}")
        for name in ("upper", "work"):
            (upper / name).mkdir()
        shutil.copystat(self.directory, upper / "upper")
        layers = f"lowerdir={_escaped(self.directory)}"
        # Without redirect_dir directories from below cannot be renamed (EXDEV), which no full disk refuses.
        layers += f",upperdir={_escaped(upper / 'upper')},workdir={_escaped(upper / 'work')},redirect_dir=on"
        flags = mount_namespaces.RDONLY if self.without == "writes" else 0
        mount_namespaces.mount(self.mark, Path(self.directory), "overlay", flags, layers)
        with contextlib.suppress(OSError):
            # Until it is full.
            if self.without == "inodes":
                for number in range(_INODES_OF_OVERLAY):
                    (upper / f"inode-{number}").touch()
            else:
                (upper / "full").write_bytes(bytes(2 * _PAGE_BYTES))


class Empty(FaultStep, frozen=True, kw_only=True, tag="empty"):
    """An empty directory in place of the directory, as if its file system were not mounted."""

    mark: str
    directory: str
    processes: tuple[TargetProcess, ...]

    def do(self) -> None:
        mount_namespaces.where_seen_by(self.processes, self._cover)

    def undo(self) -> None:
        mount_namespaces.unmount(Path(self.directory), self.mark)

    def _cover(self) -> None:
        data = f"mode=0755,size={_PAGE_BYTES}"
        mount_namespaces.mount(self.mark, Path(self.directory), "tmpfs", mount_namespaces.RDONLY, data)


class Unmount(FaultStep, frozen=True, kw_only=True, tag="unmount"):
    """The removal of a helper's mount."""

    mark: str
    directory: str

    def do(self) -> None:
        """Do nothing: the helper mounts the file system."""

    def undo(self) -> None:
        mount_namespaces.unmount(Path(self.directory), self.mark)


class DiskOptions(FaultOptions, frozen=True, kw_only=True):
    """`path`: the directory; "" for the node's state directory."""

    path: str = ""


def _full(aim: FaultTarget, options: DiskOptions) -> tuple[FaultStep, ...]:
    return (_overlay(aim, options, "bytes"),)


def _no_inodes(aim: FaultTarget, options: DiskOptions) -> tuple[FaultStep, ...]:
    return (_overlay(aim, options, "inodes"),)


def _overlay(aim: FaultTarget, options: DiskOptions, without: Literal["bytes", "inodes", "writes"]) -> Overlay:
    directory, scratch = str(directory_apart(aim, options)), str(aim.place)
    return Overlay(mark=aim.mark, directory=directory, scratch=scratch, without=without, processes=aim.processes())


def _read_only(aim: FaultTarget, options: DiskOptions) -> tuple[FaultStep, ...]:
    return (_overlay(aim, options, "writes"),)


def _unmounted(aim: FaultTarget, options: DiskOptions) -> tuple[FaultStep, ...]:
    return (Empty(mark=aim.mark, directory=str(directory_of(aim, options)), processes=aim.processes()),)


def _hanging(aim: FaultTarget, options: DiskOptions) -> tuple[FaultStep, ...]:
    directory = str(directory_of(aim, options))
    seen_by = str(aim.agent.pid if aim.agent and aim.agent.is_alive else os.getpid())
    return (
        Unmount(mark=aim.mark, directory=directory),
        Helper(mark=aim.mark, module="holdfast.faults.kinds.disk", arguments=(aim.mark, directory, seen_by)),
    )


def directory_of(aim: FaultTarget, options: DiskOptions) -> Path:
    """Return the directory of the fault. Raises FaultRefused if there is none, or it is more than should be broken."""
    directory = Path(options.path).resolve() if options.path else aim.directory
    if not directory.is_dir():
        raise FaultRefused(f"{directory} is not a directory")
    if directory == Path("/"):
        raise FaultRefused("the root of all files is more than a drill should break: name a directory with -o path=...")
    return directory


def directory_apart(aim: FaultTarget, options: DiskOptions) -> Path:
    """Return the directory of a fault that needs a place outside of it. Raises FaultRefused as `directory_of` does, and
    if what the fault keeps for itself lies in it.
    """
    directory = directory_of(aim, options)
    if aim.place.is_relative_to(directory):
        raise FaultRefused(f"{directory} holds the cluster's own directory: name a directory of a node or a job in it")
    return directory


def _escaped(path: str | Path) -> str:
    """Escape a path for the options of overlayfs."""
    return "".join(f"\\{character}" if character in "\\:," else character for character in str(path))


def main() -> None:
    """Mount a FUSE file system and answer no request until it is unmounted."""
    mark, directory, seen_by = sys.argv[1:]
    device = os.open("/dev/fuse", os.O_RDWR)
    data = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    try:
        mount_namespaces.enter(int(seen_by))
        mount_namespaces.mount(
            mark, Path(directory), "fuse.holdfast", mount_namespaces.NOSUID | mount_namespaces.NODEV, data
        )
    except OSError as error:
        sys.exit(str(error))
    os.write(1, READY)
    gone = select.poll()
    gone.register(device, 0)
    while not any(events & select.POLLERR for _, events in gone.poll()):
        continue


FAULTS = (
    Fault(
        "disk-full",
        Symptom.INSUFFICIENT_DISK_SPACE,
        FaultScope.NODE,
        "no data can be written to a directory (ENOSPC); existing files can be read",
        _full,
        needs=(Requirement.MOUNT, Requirement.OVERLAY),
        options=DiskOptions,
        undo="it is unmounted, and all is as before",
    ),
    Fault(
        "inodes-full",
        Symptom.INSUFFICIENT_DISK_SPACE,
        FaultScope.NODE,
        "no file can be created in a directory (ENOSPC) although there is space",
        _no_inodes,
        needs=(Requirement.MOUNT, Requirement.OVERLAY),
        options=DiskOptions,
        undo="it is unmounted, and all is as before",
    ),
    Fault(
        "read-only",
        Symptom.FILESYSTEM_MOUNT,
        FaultScope.NODE,
        "a directory is read-only (EROFS), as after an error of its disk",
        _read_only,
        needs=(Requirement.MOUNT, Requirement.OVERLAY),
        options=DiskOptions,
        undo="it is unmounted",
    ),
    Fault(
        "unmounted",
        Symptom.FILESYSTEM_MOUNT,
        FaultScope.NODE,
        "a directory is empty, as if its file system were not mounted",
        _unmounted,
        needs=(Requirement.MOUNT,),
        options=DiskOptions,
        undo="it is unmounted, and what was there is back",
    ),
    Fault(
        "mount-hangs",
        Symptom.FILESYSTEM_MOUNT,
        FaultScope.NODE,
        "every access to a directory blocks forever, as with a dead file server",
        _hanging,
        needs=(Requirement.MOUNT, Requirement.FUSE),
        options=DiskOptions,
        undo="who waits gets an error, it is unmounted, and what was there is back",
    ),
)

if __name__ == "__main__":
    main()
