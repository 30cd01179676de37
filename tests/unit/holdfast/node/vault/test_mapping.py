"""Memory files as memory of this process."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from holdfast.node.vault.huge_pages import HUGE_BYTES
from holdfast.node.vault.mmap_file import map_file

NBYTES = HUGE_BYTES + 5


@pytest.fixture
def descriptor() -> int:
    it = os.memfd_create("holdfast-mapped-by-a-test")
    os.ftruncate(it, 2 * HUGE_BYTES)
    return it


def mapped() -> bool:
    return "holdfast-mapped-by-a-test" in Path("/proc/self/maps").read_text()


def test_it_begins_where_a_huge_page_can(descriptor: int) -> None:
    some = [map_file(descriptor, NBYTES, private=False) for _ in range(3)]
    assert all(memory.ctypes.data % HUGE_BYTES == 0 and memory.size == NBYTES for memory in some)


def test_what_is_written_is_in_the_file_unless_it_is_private(descriptor: int) -> None:
    shared, private = map_file(descriptor, NBYTES, private=False), map_file(descriptor, NBYTES, private=True)
    shared[-1] = 7
    assert private[-1] == 7
    private[-1] = 9
    assert shared[-1] == 7 and os.pread(descriptor, 1, NBYTES - 1) == b"\x07"


def test_it_is_given_back_when_nothing_refers_to_it(descriptor: int) -> None:
    part = map_file(descriptor, NBYTES, private=True)[HUGE_BYTES:].view(np.int8)
    gc.collect()
    assert mapped() and part[0] == 0
    del part
    gc.collect()
    assert not mapped()


def test_nothing_is_mapped_of_nothing(descriptor: int) -> None:
    assert map_file(descriptor, 0, private=True).size == 0
    gc.collect()
    assert not mapped()


def test_what_is_no_file_is_refused() -> None:
    before = Path("/proc/self/maps").read_text().count("\n")
    with pytest.raises(OSError, match="Bad file descriptor"):
        map_file(-1, NBYTES, private=True)
    assert Path("/proc/self/maps").read_text().count("\n") <= before + 2
