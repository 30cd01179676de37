"""A consistent copy of a running process's memory as of one moment, taken while the process goes on.

The ranges are write-protected first, which takes a tenth of a millisecond for a GB in huge pages and is all that the
process waits for. Then they are copied block by block, and the protection of each block is lifted when it is done. A
writer that is early for a block waits only until that block is copied next, so nothing written after the start can be
in the copy. (ByteRobust §6.3 has the optimizer wait for its own shard; here it waits for one block of it.)

A chunk of the copy is hashed as soon as it is complete: it is in the processor's cache then, and is not read from
memory again.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from holdfast.node.vault import userfaultfd
from holdfast.node.vault.seals import CHUNK_BYTES, Bytes, chunk_hash, chunks_of
from holdfast_vault.shelf.held_process import HeldProcess, Piece, SourceLost

BLOCK_BYTES = 2 << 20
"""Copied and released at once: a huge page, so that releasing never splits one."""
_MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
_ADDRESS_MAX = (1 << 63) - 1


def layout_problem(nbytes: int, pieces: Sequence[tuple[int, int, int]]) -> str:
    """Return why these pieces cannot be a rank's state of `nbytes` bytes, "" if they can.

    The vault writes them at their offsets with its own rights: one outside of the target would lie in other memory.
    """
    if not 0 <= nbytes <= _MEMORY_BYTES:
        return f"a state of {nbytes} bytes, on a machine with {_MEMORY_BYTES}"
    for address, size, offset in pieces:
        if not 0 <= offset <= offset + size <= nbytes or not 0 <= address <= address + size <= _ADDRESS_MAX:
            return f"{size} bytes at {address} belong at {offset} of a state of {nbytes} bytes"
    return ""


class CopyLayout:
    """The ranges to copy, cut into blocks; made once and used for every snapshot of the same tensors. `protected` are
    the page-aligned ranges (address, bytes) that hold the pieces: registered by the source's process.
    """

    def __init__(self, pieces: Sequence[Piece], protected: Sequence[tuple[int, int]]) -> None:
        self.protected = tuple(protected)
        self.pieces = tuple(pieces)
        by_block: dict[int, list[Piece]] = {}
        for address, nbytes, offset in pieces:
            while nbytes:
                block = address // BLOCK_BYTES
                part = min(nbytes, (block + 1) * BLOCK_BYTES - address)
                by_block.setdefault(block, []).append(Piece(address, part, offset))
                address, nbytes, offset = address + part, nbytes - part, offset + part
        # In the order of the target, so that the parts of a chunk come soon after each other.
        order = sorted(by_block, key=lambda block: min(piece.offset for piece in by_block[block]))
        self.blocks = tuple(tuple(by_block[block]) for block in order)
        self.index_of = {block: index for index, block in enumerate(order)}
        self.releases = tuple(tuple(_overlaps(block, self.protected)) for block in order)
        self.chunks = tuple(_chunks(block) for block in self.blocks)
        self.blocks_of_chunk = Counter(chunk for chunks in self.chunks for chunk in chunks)


def _chunks(pieces: Sequence[Piece]) -> frozenset[int]:
    """Return the chunks of the target that these are parts of."""
    return frozenset(
        chunk
        for _, nbytes, offset in pieces
        for chunk in range(offset // CHUNK_BYTES, (offset + nbytes - 1) // CHUNK_BYTES + 1)
    )


def _overlaps(block: int, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    start, stop = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES
    return [
        (max(start, address), min(stop, address + nbytes) - max(start, address))
        for address, nbytes in ranges
        if address < stop and start < address + nbytes
    ]


def protect(source: HeldProcess, descriptor: int, layout: CopyLayout) -> None:
    """Protect the source's ranges from changes until they are copied. Raises SourceLost: some are gone."""
    try:
        for address, nbytes in layout.protected:
            userfaultfd.protect(descriptor, address, nbytes)
    except OSError as error:
        _release_all(descriptor, layout)
        raise SourceLost(f"memory of {source} cannot be protected: {error.strerror}") from error


def _release_all(descriptor: int, layout: CopyLayout) -> None:
    for address, nbytes in layout.protected:
        userfaultfd.release(descriptor, address, nbytes)


class MemorySnapshot:
    """One copy in progress, of ranges that are protected. The source process does not wait for it."""

    def __init__(self, source: HeldProcess, descriptor: int, layout: CopyLayout, target: Bytes) -> None:
        self._source = source
        self._descriptor = descriptor
        self._layout = layout
        self._target = target
        self._turn = threading.Lock()
        self._next = 0
        self._taken = bytearray(len(layout.blocks))
        self._blocks_missing = layout.blocks_of_chunk.copy()
        self._unhashed = deque(number for number in range(chunks_of(target.size)) if not self._blocks_missing[number])
        self._hashes: dict[int, int] = {}
        self._failure: BaseException | None = None
        self.writers_waited_s = 0.0
        """Time in which a writer was served first. One whose block was just being copied is not in it."""

    def copy(self, threads: int = 1) -> tuple[int, ...]:
        """Copy everything, and return the hashes of its chunks. No writer waits any more when this returns or raises.
        Raises SourceLost: the process ended; OSError, RuntimeError: no descriptor, or no thread, for it.
        """
        try:
            self._copy(threads)
            if self._failure is not None:
                raise self._failure
        except BaseException:
            _release_all(self._descriptor, self._layout)
            raise
        self._hash_chunks()
        return tuple(self._hashes[number] for number in range(len(self._hashes)))

    def _copy(self, threads: int) -> None:
        done = os.eventfd(0, os.EFD_CLOEXEC)
        warden = threading.Thread(target=self._guarded, args=(self._serve_writers, done))
        helpers = [threading.Thread(target=self._guarded, args=(self._copy_blocks,)) for _ in range(threads - 1)]
        self._guarded(self._copy_beside, warden, *helpers)
        # Not all of them have been started if that failed.
        for thread in helpers:
            if thread.is_alive():
                thread.join()
        os.eventfd_write(done, 1)
        if warden.is_alive():
            warden.join()
        os.close(done)

    def _copy_beside(self, *others: threading.Thread) -> None:
        for thread in others:
            thread.start()
        self._copy_blocks()

    def _guarded(self, work: Callable[..., None], *args: object) -> None:
        try:
            work(*args)
        except Exception as error:  # noqa: BLE001 - `copy` raises it in its caller's thread
            self._failure = self._failure or error

    def _copy_blocks(self) -> None:
        while self._failure is None and (index := self._take_next()) is not None:
            self._copy_block(index)
            self._hash_chunks()

    def _take_next(self) -> int | None:
        with self._turn:
            self._next = self._taken.find(0, self._next)
            if self._next < 0:
                self._next = len(self._taken)
                return None
            self._taken[self._next] = 1
            return self._next

    def _take(self, index: int) -> bool:
        with self._turn:
            was_taken, self._taken[index] = self._taken[index], 1
            return not was_taken

    def _serve_writers(self, done: int) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.register(done, select.POLLIN)
        while self._failure is None and done not in dict(poll.poll()):
            began = time.monotonic()
            for address in userfaultfd.waiting_writers(self._descriptor):
                index = self._layout.index_of[address // BLOCK_BYTES]
                if self._take(index):
                    self._copy_block(index)
            self.writers_waited_s += time.monotonic() - began

    def _copy_block(self, index: int) -> None:
        self._source.read(self._layout.blocks[index], self._target)
        for address, nbytes in self._layout.releases[index]:
            userfaultfd.release(self._descriptor, address, nbytes)
        with self._turn:
            for chunk in self._layout.chunks[index]:
                self._blocks_missing[chunk] -= 1
                if not self._blocks_missing[chunk]:
                    self._unhashed.append(chunk)

    def _hash_chunks(self) -> None:
        """Hash the complete chunks. The thread that serves waiting writers does not do this."""
        while True:
            try:
                number = self._unhashed.popleft()
            except IndexError:  # another thread took the last one
                return
            self._hashes[number] = chunk_hash(self._target, number)
