"""Memory files, mapped where their huge pages can be seen as such: at an address that is a multiple of their size.

Elsewhere the kernel maps them in small pieces, finds each on its own, and needs 512 times as many entries for them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np

from holdfast.node.vault.huge_pages import HUGE_BYTES
from holdfast.node.vault.seals import Bytes

_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def map_file(descriptor: int, nbytes: int, *, private: bool) -> Bytes:
    """Map the first `nbytes` of a file, until nothing refers to the result any more. `private`: what is written there
    stays with this process. Raises OSError: ENOMEM.
    """
    reserved = max(nbytes, 1) + HUGE_BYTES
    base = _map(None, reserved, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    address = -(-base // HUGE_BYTES) * HUGE_BYTES
    kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    try:
        _map(address, max(nbytes, 1), mmap.PROT_READ | mmap.PROT_WRITE, kind | _MAP_FIXED, descriptor)
    except OSError:
        _libc.munmap(base, reserved)
        raise
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    # At the end of the process the kernel unmaps it; other threads may still read before that.
    weakref.finalize(memory, _libc.munmap, base, reserved).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8) if nbytes else np.empty(0, np.uint8)


def _map(address: int | None, nbytes: int, rights: int, flags: int, descriptor: int) -> int:
    found: int | None = _libc.mmap(address, nbytes, rights, flags, descriptor, 0)
    if found is None or found == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found
