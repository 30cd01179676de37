"""Huge pages for memory that is already in use: what walks page tables then has 512 times fewer entries to look at.

A fork copies them: with torch loaded (227 MB) 4.8 ms -> 1.2 ms, and the child's exit 6.3 ms -> 2.5 ms; once 0.5 s.
A write protection changes them: 1 GB 100 ms -> 0.1 ms.
"""

from __future__ import annotations

import ctypes
import errno

_MADV_COLLAPSE = 25
HUGE_BYTES = 2 * 1024 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def collapse_heap() -> int:
    """Move this process's private anonymous memory into huge pages; return how many it now has more. A kernel before
    6.1 cannot, and one short of memory does not: both leave everything as it was.
    """
    collapsed = 0
    for begin, end in _anonymous_ranges():
        collapsed += collapse(begin, end - begin)
    return collapsed


def collapse(address: int, nbytes: int) -> int:
    """Make the whole huge pages of a range one piece each, if the kernel can and will; return how many are so now."""
    begin, end = _inner(address, address + nbytes)
    if begin >= end:
        return 0
    # In one call: each has all cores empty their lists of fresh pages first, and waits for that.
    if _libc.madvise(begin, end - begin, _MADV_COLLAPSE) == 0:
        return (end - begin) // HUGE_BYTES
    collapsed = 0
    for block in range(begin, end, HUGE_BYTES):
        if _libc.madvise(block, HUGE_BYTES, _MADV_COLLAPSE) == 0:
            collapsed += 1
        elif ctypes.get_errno() == errno.EINVAL and not collapsed:
            break  # unknown to this kernel, or a range that cannot
    return collapsed


def _inner(first: int, last: int) -> tuple[int, int]:
    return -(-first // HUGE_BYTES) * HUGE_BYTES, last // HUGE_BYTES * HUGE_BYTES


def _anonymous_ranges() -> list[tuple[int, int]]:
    """Return the parts of writable private anonymous mappings that whole huge pages fit in."""
    ranges: list[tuple[int, int]] = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, rights, _, _, _, *path = line.split()
            if rights != "rw-p" or (path and path[0] != "[heap]"):
                continue
            begin, end = _inner(*(int(part, 16) for part in span.split("-")))
            if begin < end:
                ranges.append((begin, end))
    return ranges
