"""A segment: memory for one shard, which outlives the rank that fills it.

It is a memfd, so it has no name in any file system and exists as long as a process has its descriptor. Its pages are
allocated when it is made, so that a save never waits for the kernel to find some; or chunk by chunk as they are put
into it, which takes less time in all if a fetch waits for it (`is_fresh`). They become huge pages afterwards
(`settle`): copying to them is then a sixth faster, and mapping them needs no time. Allocating huge pages at once would
take too long for a fetch.

Some chunks of a copy may be left out because replicas sent them in its place (ADR 12): they have no memory.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Iterator

import msgspec

from holdfast.node.vault.huge_pages import HUGE_BYTES, collapse
from holdfast.node.vault.messages import SealedStep
from holdfast.node.vault.mmap_file import map_file
from holdfast.node.vault.seals import CHUNK_BYTES, Bytes, Seal, chunk_bytes, chunks_of

SETTLED_BYTES = 8 << 20
"""Moved into huge pages in one call, in some milliseconds. A process that is killed ends after such a call."""


class SealedContents(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a sealed segment."""

    sealed: SealedStep
    index: bytes
    objects: bytes
    seal: Seal


class Segment:
    """One buffer of `nbytes`; `contents` is None until it is sealed. Its memory is freed when no shelf, reader or
    sender refers to it. `holds` and `is_filling` belong to its shelf, which may not give it away while in use.
    """

    def __init__(
        self,
        name: str,
        nbytes: int,
        absent: frozenset[int] = frozenset(),
        *,
        is_fresh: bool = False,
        descriptor: int | None = None,
    ) -> None:
        """Allocate all chunks but the `absent` ones; if `is_fresh`, `put` allocates each. The caller has made sure that
        there is memory (see `memory_budget.py`). Raises OSError if there is none after all. `descriptor`: of a segment
        that has its memory already; it is closed with this one.
        """
        self.nbytes = nbytes
        self.absent = absent
        self.contents: SealedContents | None = None
        self.holds = 0
        self.is_filling = False
        size = -(-max(nbytes, 1) // HUGE_BYTES) * HUGE_BYTES
        if descriptor is None:
            descriptor = _memory_file(name, size, [] if is_fresh else list(self._spans(size)))
        self.descriptor = descriptor
        self._to_come = set(range(chunks_of(nbytes))) - absent if is_fresh else set[int]()
        weakref.finalize(self, os.close, self.descriptor)
        self._pages = map_file(self.descriptor, size, private=False)
        self._is_settled = False
        self.memory: Bytes = self._pages[:nbytes]

    @property
    def file(self) -> int:
        """Inode of its file: it has no other name, and each process that maps it sees the same."""
        return os.fstat(self.descriptor).st_ino

    @property
    def sealed(self) -> SealedStep | None:
        """The step that it has; None: none is sealed."""
        return self.contents.sealed if self.contents is not None else None

    @property
    def is_idle(self) -> bool:
        return not self.is_filling and not self.holds

    def has_shape(self, nbytes: int, absent: frozenset[int]) -> bool:
        return self.nbytes == nbytes and self.absent == absent

    def has_more(self, contents: SealedContents, absent: frozenset[int]) -> bool:
        """Return True if it has the same contents with more chunks than but the `absent` ones."""
        return self.contents is not None and self.contents.seal == contents.seal and self.absent < absent

    @property
    def is_settled(self) -> bool:
        """True if its pages stay what they are."""
        return self._is_settled

    @property
    def nbytes_taken(self) -> int:
        return bytes_taken(self.nbytes, self.absent)

    @property
    def is_fresh(self) -> bool:
        """True if chunks are still to come that there is no memory for yet."""
        return bool(self._to_come)

    @property
    def nbytes_to_come(self) -> int:
        return len(self._to_come) * CHUNK_BYTES

    def put(self, number: int, data: memoryview) -> None:
        """Write a chunk. Raises OSError: there is no memory for it."""
        begin = number * CHUNK_BYTES
        while data:
            written = os.pwrite(self.descriptor, data, begin)
            begin, data = begin + written, data[written:]
        self._to_come.discard(number)

    def settle(self) -> None:
        """Move it into huge pages, as far as there are any; concurrent readers and writers do not notice."""
        if not self._is_settled:
            for begin, end in self._spans(self._pages.size):
                for first in range(begin, end, SETTLED_BYTES):
                    collapse(self._pages.ctypes.data + first, min(SETTLED_BYTES, end - first))
        self._is_settled = True

    def _spans(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of `size` bytes that there is memory for: chunks are multiples of huge pages."""
        begin = 0
        for number in sorted(self.absent):
            if begin < number * CHUNK_BYTES:
                yield begin, number * CHUNK_BYTES
            begin = (number + 1) * CHUNK_BYTES
        if begin < size:
            yield begin, size


def bytes_taken(nbytes: int, absent: frozenset[int]) -> int:
    """Return the bytes of memory that a shard of `nbytes` takes without its `absent` chunks."""
    return nbytes - sum(chunk_bytes(nbytes, number) for number in absent)


def _memory_file(name: str, size: int, spans: list[tuple[int, int]]) -> int:
    # None of those that a machine sets aside (MFD_HUGETLB): sendfile refuses them, and a private mapping takes as many
    # again, or fails.
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        # A rank has it too: reading memory that it has cut off would end the vault.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        for begin, end in spans:
            os.posix_fallocate(descriptor, begin, end - begin)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
