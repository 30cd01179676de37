"""Memory that outlives a rank: segments that take turns, one filled while the last ones stay sealed.

ByteRobust (§7) alternates two buffers. Here there are three, for two can leave a job without any step that all ranks
have: a rank that has sealed step n fills the next one over step n - 1, while another, slower one dies before it has
sealed n. In step with each other by their collectives, ranks are never further apart than that.

A segment is a memfd: it has no name in any file system, and is there as long as somebody holds its descriptor. Its
pages are taken when it is made, so that a save never waits for the kernel to find some.
"""

from __future__ import annotations

import mmap
import os
import threading

import msgspec
import numpy as np

from holdfast.seals import Bytes, Seal
from holdfast.vault_wire import SealedStep

SEGMENTS = 3
_HUGE_BYTES = 2 << 20


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a sealed segment holds."""

    sealed: SealedStep
    index: bytes
    objects: bytes
    seal: Seal


class Segment:
    """One buffer of `nbytes`. `contents` is None from the beginning of a save until its seal."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.nbytes = nbytes
        self.contents: Contents | None = None
        self.descriptor = _memory_file(name, max(nbytes, 1))
        self._mapping = mmap.mmap(self.descriptor, max(nbytes, 1))
        self.memory: Bytes = np.frombuffer(self._mapping, np.uint8)[:nbytes]

    def close(self) -> None:
        """Give the memory back, as far as this process holds it."""
        self.contents = None
        del self.memory
        self._mapping.close()
        os.close(self.descriptor)


def _memory_file(name: str, nbytes: int) -> int:
    size = -(-nbytes // _HUGE_BYTES) * _HUGE_BYTES
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_HUGETLB | os.MFD_HUGE_2MB)
    except OSError:
        descriptor = None  # a kernel without them
    if descriptor is not None:
        try:
            os.ftruncate(descriptor, size)
            os.posix_fallocate(descriptor, 0, size)
            return descriptor
        except OSError:
            os.close(descriptor)  # not enough of them are set aside on this machine
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    os.posix_fallocate(descriptor, 0, size)
    return descriptor


class Shelf:
    """The segments of one rank. `turn` is held while one of them is filled and sealed."""

    def __init__(self, name: str) -> None:
        self.turn = threading.Lock()
        self._name = name
        self._segments: list[Segment] = []

    def empty(self, nbytes: int) -> Segment:
        """The segment to fill next: one without contents, else the one with the oldest; made where the size is another.

        Raises:
            OSError: ENOMEM, ENOSPC: there is no memory for it.
        """
        sealed = self.sealed()
        spare = next((segment for segment in self._segments if segment.contents is None), None)
        if spare is None and len(sealed) >= SEGMENTS:
            spare = sealed[-1]
        if spare is not None and spare.nbytes == nbytes:
            spare.contents = None
            return spare
        if spare is not None:
            self._segments.remove(spare)
            spare.close()
        fresh = Segment(self._name, nbytes)
        self._segments.append(fresh)
        return fresh

    def stock(self, nbytes: int) -> None:
        """Make the segments that are still missing, so that no later save waits for memory."""
        while len(self._segments) < SEGMENTS:
            self._segments.append(Segment(self._name, nbytes))

    def sealed(self) -> list[Segment]:
        """All that are sealed, newest first."""
        whole = [segment for segment in self._segments if segment.contents is not None]
        return sorted(whole, key=_sealed_of, reverse=True)

    def find(self, sealed: SealedStep) -> Segment | None:
        """The segment that holds this step of this generation."""
        return next((segment for segment in self.sealed() if _sealed_of(segment) == sealed), None)

    def keep_only(self, sealed: SealedStep | None) -> None:
        """Forget what all other segments hold."""
        for segment in self.sealed():
            if _sealed_of(segment) != sealed:
                segment.contents = None

    def close(self) -> None:
        """Give all memory back."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()


def _sealed_of(segment: Segment) -> SealedStep:
    assert segment.contents is not None
    return segment.contents.sealed
