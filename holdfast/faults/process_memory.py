"""Reads and writes of another process's memory (process_vm_readv and _writev), and a search for its tensors.

Tensors are recognised by their contents: pages of single precision numbers of plausible size. Between two reads,
weights change a little, gradients and activations completely.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = 4096
WORDS = PAGE_BYTES // 4
LARGEST = 1e4
SMALLEST = 1e-12
LITTLE = 0.25
"""Maximum relative change of weights, as the median of a page."""
LOOK_BYTES_MAX = 2 << 30
"""Maximum memory of a process to search."""
_CHUNK_BYTES = 16 << 20


class Area(NamedTuple):
    """Private writable memory of a process."""

    start: int
    end: int


class Pages(NamedTuple):
    """Addresses of pages of tensors."""

    weights: list[int]
    gradients: list[int]


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
for _call in (_libc.process_vm_readv, _libc.process_vm_writev):
    _call.restype = ctypes.c_ssize_t
    _pointer = ctypes.POINTER(_IoVec)
    _call.argtypes = (ctypes.c_int, _pointer, ctypes.c_ulong, _pointer, ctypes.c_ulong, ctypes.c_ulong)


def read(pid: int, address: int, size: int) -> bytes:
    """Read up to `size` bytes, fewer where the memory ends. Raises OSError."""
    buffer = ctypes.create_string_buffer(size)
    here, there = _IoVec(ctypes.addressof(buffer), size), _IoVec(address, size)
    done = _checked(_libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
    return buffer.raw[:done]


def write(pid: int, address: int, data: bytes) -> None:
    """Write `data`. Raises OSError."""
    buffer = ctypes.create_string_buffer(data, len(data))
    here, there = _IoVec(ctypes.addressof(buffer), len(data)), _IoVec(address, len(data))
    _checked(_libc.process_vm_writev(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))


def areas(pid: int) -> list[Area]:
    """Return anonymous private writable memory: heap, arenas, large blocks; no stacks, files or shared memory."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, _, _, inode, *name = line.split(maxsplit=5)
        if rights == "rw-p" and inode == "0" and (not name or name[0] == "[heap]"):
            start, end = (int(part, 16) for part in span.split("-"))
            found.append(Area(start, end))
    return found


def untouched(pid: int) -> int | None:
    """Return the address of a writable page that the process has not touched yet (all zeros). Raises OSError."""
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for area in areas(pid):
            for start in range(area.start, area.end, _CHUNK_BYTES):
                count = min(_CHUNK_BYTES, area.end - start) // PAGE_BYTES
                pagemap.seek(start // PAGE_BYTES * 8)
                entries = np.frombuffer(pagemap.read(count * 8), dtype=np.uint64)
                if len(free := np.flatnonzero(entries >> 62 == 0)):
                    return start + int(free[0]) * PAGE_BYTES
    return None


def tensors(pid: int, apart_s: float) -> Pages:
    """Find pages of tensors by two reads more than a step (`apart_s`) apart. Raises OSError if they fail."""
    before = dict(_tensor_pages(pid))
    time.sleep(apart_s)
    weights: list[int] = []
    gradients: list[int] = []
    for address, numbers in before.items():
        try:
            now = np.frombuffer(read(pid, address, PAGE_BYTES), dtype=np.float32)
        except OSError:
            continue
        if len(now) < WORDS or not _is_sound(now):
            continue
        changed = np.abs(now - numbers)
        if not changed.any():
            continue
        with np.errstate(over="ignore"):
            by = np.median(changed / (np.abs(numbers) + SMALLEST))
        (weights if by < LITTLE else gradients).append(address)
    return Pages(weights, gradients)


def _tensor_pages(pid: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    looked = 0
    for area in areas(pid):
        for start in range(area.start, area.end, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, area.end - start)
            looked += size
            if looked > LOOK_BYTES_MAX:
                return
            try:
                data = read(pid, start, size)
            except OSError:
                continue  # Freed meanwhile, or reserved without permissions.
            pages = np.frombuffer(data[: len(data) // PAGE_BYTES * PAGE_BYTES], dtype=np.float32).reshape(-1, WORDS)
            for place in np.flatnonzero(_are_sound(pages)):
                yield start + int(place) * PAGE_BYTES, pages[place]


def _are_sound(pages: NDArray[np.float32]) -> NDArray[np.bool_]:
    size = np.abs(pages)
    with np.errstate(invalid="ignore"):
        sound = ((size > SMALLEST) & (size < LARGEST)).mean(axis=1) > 0.95
        varied = pages.max(axis=1) > pages.min(axis=1)  # A page of a single repeated number is not a training tensor.
    return np.asarray(sound & varied, dtype=np.bool_)


def _is_sound(page: NDArray[np.float32]) -> bool:
    return bool(_are_sound(page[None, :])[0])


def _checked(done: int) -> int:
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return done
