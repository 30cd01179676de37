"""The memory of a shard is such that it can be sent, mapped privately, and given back."""

from __future__ import annotations

import mmap
import os
import socket

from holdfast_agent.vault.segments import Segment


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
