"""A segment: memory for one shard, which outlives the rank that fills it.

It is a memfd: it has no name in any file system, and is there as long as somebody holds its descriptor. Its pages are
taken when it is made, so that a save never waits for the kernel to find some. They become huge pages afterwards
(`settle`): what is copied there is then a sixth faster, and who maps it finds it at once. To have huge pages from the
beginning takes too long where a fetch waits for the segment.
"""

from __future__ import annotations

import os
import weakref

import msgspec

from holdfast.huge_pages import HUGE_BYTES, collapse
from holdfast.mapping import map_file
from holdfast.seals import Bytes, Seal
from holdfast.vault_wire import SealedStep


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a sealed segment holds."""

    sealed: SealedStep
    index: bytes
    objects: bytes
    seal: Seal


class Segment:
    """One buffer of `nbytes`. `contents` is None until it is sealed.

    Its memory is given back when nobody refers to it any more: neither its shelf nor who reads or sends it just now.
    `holds` and `is_filling` are its shelf's, who may not give it away while it is in use.
    """

    def __init__(self, name: str, nbytes: int) -> None:
        """Whoever makes one knows that there is memory for it: see `room`. Raises OSError: there is none after all."""
        self.nbytes = nbytes
        self.contents: Contents | None = None
        self.holds = 0
        self.is_filling = False
        self.descriptor = _memory_file(name, max(nbytes, 1))
        weakref.finalize(self, os.close, self.descriptor)
        self._pages = map_file(self.descriptor, os.fstat(self.descriptor).st_size, private=False)
        self._is_settled = False
        self.memory: Bytes = self._pages[:nbytes]

    def settle(self) -> None:
        """Move it into huge pages, as far as there are any; whoever reads or fills it meanwhile does not notice."""
        if not self._is_settled:
            collapse(self._pages.ctypes.data, self._pages.size)
        self._is_settled = True


def _memory_file(name: str, nbytes: int) -> int:
    size = -(-nbytes // HUGE_BYTES) * HUGE_BYTES
    # None of those that a machine sets aside (MFD_HUGETLB): sendfile refuses them, and a private mapping takes as many
    # again, or fails.
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
