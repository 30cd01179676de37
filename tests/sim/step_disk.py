"""A disk under the code that writes steps: a power cut keeps what was synced, and of everything else any part.

The code runs on a real directory. What was durable when is known from its calls of fsync: the data of a file, the names
in a directory. After a cut a directory is made of what is left: of the changes of names that were not synced any may be
lost, in any order, but a rename is done or not; of a file there is the synced data, or some of what was written later.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

CHANGES = ("rename", "mkdir", "unlink", "rmdir")

Names = dict[str, int]
Place = tuple[int, str]
"""A directory by its number, and a name in it."""


class PowerCut(BaseException):
    """The machine is off."""


class StepDisk:
    """One life of the machine, from one cut to the next."""

    def __init__(
        self, root: Path, chance: random.Random, cut_at: int, is_synced: Callable[[str], bool] = lambda path: True
    ) -> None:
        """`cut_at`: the number of the change, or of the call of fsync, at which the power is cut. `is_synced` tells if
        the disk does what fsync asks for a path, or lies. What is in `root` is durable.
        """
        self._root = root
        self._chance = chance
        self._left = cut_at
        self._is_synced = is_synced
        self._descriptors: dict[int, int] = {}
        """One for each file and directory, so that its number is not given to another one."""
        self._data: dict[int, bytes] = {}
        """The synced data of files."""
        self._names: dict[int, Names] = {}
        """The synced names in directories."""
        self._seen: dict[int, Names] = {}
        """The names in directories at the last look."""
        self._changes: list[dict[Place, int | None]] = []
        """What changed from one look to the next and is not synced."""
        self._look()
        self._changes.clear()
        self._names = {number: dict(names) for number, names in self._seen.items()}
        for number, descriptor in self._descriptors.items():
            if number not in self._seen:
                self._data[number] = _content(descriptor)

    def attach(self, patch: pytest.MonkeyPatch) -> None:
        for name in CHANGES:
            patch.setattr(os, name, self._observed(getattr(os, name)))
        patch.setattr(os, "fsync", self._fsync)

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def after_cut(self, target: Path) -> None:
        """Make a directory of what is left."""
        self._look()
        for change in self._changes:
            if self._chance.random() < 0.5:
                self._apply(change)
        self._restore(os.stat(self._root).st_ino, target)

    def _observed(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changing(*arguments: Any, **named: Any) -> Any:
            self._look()
            result = change(*arguments, **named)
            self._tick()
            return result

        return changing

    def _fsync(self, descriptor: int) -> None:
        self._tick()
        if not self._is_synced(os.readlink(f"/proc/self/fd/{descriptor}")):
            return
        number = os.fstat(descriptor).st_ino
        if number not in self._seen:
            self._data[number] = _content(self._descriptors[number])
            return
        for change in [it for it in self._changes if any(directory == number for directory, _ in it)]:
            before = self._changes[: self._changes.index(change)]
            self._changes.remove(change)
            self._apply(change)
            for earlier in before:
                for place in change:
                    earlier.pop(place, None)

    def _apply(self, change: dict[Place, int | None]) -> None:
        for (directory, name), number in change.items():
            names = self._names.setdefault(directory, {})
            if number is None:
                names.pop(name, None)
            else:
                names[name] = number

    def _tick(self) -> None:
        self._look()
        self._left -= 1
        if not self._left:
            raise PowerCut

    def _look(self) -> None:
        """Note what has changed in the names of all directories, as the running system sees them."""
        seen: dict[int, Names] = {number: {} for number in self._seen}
        waiting = [str(self._root)]
        while waiting:
            place = waiting.pop()
            names = {entry.name: entry.inode() for entry in os.scandir(place)}
            seen[self._known(place)] = names
            for name in names:
                path = os.path.join(place, name)
                self._known(path)
                if os.path.isdir(path):
                    waiting.append(path)
        change: dict[Place, int | None] = {}
        for number, names in seen.items():
            before = self._seen.get(number, {})
            for name in names.keys() | before.keys():
                if names.get(name) != before.get(name):
                    change[number, name] = names.get(name)
        if change:
            self._changes.append(change)
        self._seen = seen

    def _known(self, path: str) -> int:
        number = os.stat(path).st_ino
        if number not in self._descriptors:
            self._descriptors[number] = os.open(path, os.O_RDONLY)
        return number

    def _restore(self, number: int, target: Path) -> None:
        if number not in self._seen:
            target.write_bytes(self._left_of(number))
            return
        target.mkdir()
        for name, entry in sorted(self._names.get(number, {}).items()):
            self._restore(entry, target / name)

    def _left_of(self, number: int) -> bytes:
        synced, written = self._data.get(number, b""), _content(self._descriptors[number])
        if synced == written:
            return synced
        kept = written[: self._chance.randrange(len(written) + 1)]
        match self._chance.randrange(4):
            case 0:
                return synced
            case 1:
                return kept
            case 2:
                # The length was written, and not all data.
                return kept + bytes(len(written) - len(kept))
            case _:
                return written


def flip_a_byte(root: Path, chance: random.Random) -> Path | None:
    """Damage a file behind everyone's back; return which."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    if not files:
        return None
    path = chance.choice(files)
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return path


def _content(descriptor: int) -> bytes:
    with suppress(OSError):
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    return b""
