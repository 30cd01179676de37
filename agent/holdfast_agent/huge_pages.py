"""Huge pages for a process that will be forked: each fork then copies far less, and its end is as much cheaper.

Measured with torch loaded (227 MB): fork 4.8 ms -> 1.2 ms, the child's exit 6.3 ms -> 2.5 ms; once 0.5 s.
"""

from __future__ import annotations

import ctypes
import errno

_MADV_COLLAPSE = 25
_HUGE_BYTES = 2 * 1024 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def collapse_heap() -> int:
    """Move this process's private anonymous memory into huge pages; returns how many it now has more.

    A kernel before 6.1 cannot, and one short of memory does not: both leave everything as it was.
    """
    collapsed = 0
    for begin, end in _anonymous_ranges():
        for address in range(begin, end, _HUGE_BYTES):
            if _libc.madvise(address, _HUGE_BYTES, _MADV_COLLAPSE) == 0:
                collapsed += 1
            elif ctypes.get_errno() == errno.EINVAL and not collapsed:
                # Unknown to this kernel, or a range that cannot: the next range tells.
                break
    return collapsed


def _anonymous_ranges() -> list[tuple[int, int]]:
    """The parts of writable private anonymous mappings that whole huge pages fit in."""
    ranges: list[tuple[int, int]] = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, rights, _, _, _, *path = line.split()
            if rights != "rw-p" or (path and path[0] != "[heap]"):
                continue
            first, last = (int(part, 16) for part in span.split("-"))
            begin = -(-first // _HUGE_BYTES) * _HUGE_BYTES
            end = last // _HUGE_BYTES * _HUGE_BYTES
            if begin < end:
                ranges.append((begin, end))
    return ranges
