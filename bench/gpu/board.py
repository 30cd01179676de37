"""What a rank that may be killed at any moment leaves behind: numbers in a file that it has mapped."""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from pathlib import Path


class Place(IntEnum):
    """Where each number lies."""

    ASKED = 0
    """The last step that the vault was asked to seal."""
    SEALED = 1
    """The last step that it has sealed."""
    DIRECT = 2
    """Number of steps that went straight into pinned memory of the vault."""
    CONTEXT = 3
    """Microseconds until the rank had a context."""
    STEPS = 4
    """Microseconds from there until the vault had answered which steps it has."""
    RESTORED = 5
    """Microseconds from there until the state was on the device."""


class Board:
    def __init__(self, path: Path, *, clear: bool = False) -> None:
        if clear:
            path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def put(self, place: Place, number: int) -> None:
        struct.pack_into("q", self._memory, 8 * place, number)

    def get(self, place: Place) -> int:
        return int(struct.unpack_from("q", self._memory, 8 * place)[0])

    def put_seconds(self, place: Place, value_s: float) -> None:
        self.put(place, round(1e6 * value_s))

    def seconds(self, place: Place) -> float:
        return self.get(place) / 1e6
