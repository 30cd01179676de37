"""The memory of a shard is such that it can be sent, mapped privately, and given back."""

from __future__ import annotations

import mmap
import os
import socket

import pytest

from holdfast.node.vault.seals import CHUNK_BYTES
from holdfast_vault.shelf.segments import Segment
from holdfast_vault.shelf.shelf import Shelf


def test_a_segment_is_of_ordinary_pages_also_where_the_machine_sets_huge_ones_aside() -> None:
    segment = Segment("a segment", 3 * mmap.PAGESIZE + 5)
    segment.memory[:] = 7
    assert os.fstatvfs(segment.descriptor).f_bsize == mmap.PAGESIZE
    with mmap.mmap(segment.descriptor, segment.nbytes, flags=mmap.MAP_PRIVATE) as private:
        private[0] = 1
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = os.sendfile(ours.fileno(), segment.descriptor, 0, segment.nbytes)
        assert theirs.recv(sent) == b"\7" * sent


def test_a_fresh_segment_takes_memory_chunk_by_chunk() -> None:
    segment = Segment("fresh", 3 * CHUNK_BYTES - 7, frozenset({1}), is_fresh=True)
    assert segment.is_fresh and segment.nbytes_to_come == 2 * CHUNK_BYTES
    assert os.fstat(segment.descriptor).st_blocks == 0
    segment.put(2, memoryview(b"\2" * (CHUNK_BYTES - 7)))
    assert segment.is_fresh and segment.nbytes_to_come == CHUNK_BYTES
    segment.put(0, memoryview(b"\1" * CHUNK_BYTES))
    assert not segment.is_fresh and segment.nbytes_to_come == 0
    assert (segment.memory[0], segment.memory[-1]) == (1, 2)
    assert os.fstat(segment.descriptor).st_blocks * 512 == 2 * CHUNK_BYTES


def test_a_fresh_segment_that_is_not_filled_is_nobody_elses_to_fill() -> None:
    shelf = Shelf("a shelf")
    fresh = shelf.claim(5, by_chunks=True)
    shelf.put_back(fresh)
    assert shelf.claim(5) is not fresh


def test_whoever_has_its_file_cannot_cut_its_memory_off() -> None:
    segment = Segment("a segment", 3 * mmap.PAGESIZE)
    for nbytes in (0, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.descriptor, nbytes)
