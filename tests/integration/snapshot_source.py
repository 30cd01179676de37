"""A process whose memory is copied: it fills arrays, asks for a snapshot, and changes everything as soon as it may.

python snapshot_source.py SOCKET_FD SIZES OFFSETS HUGE    (SIZES and OFFSETS in bytes, with commas)

On the socket it sends the pieces with its descriptor. Then for each "begun" that it receives it overwrites all arrays
with the next pattern and says "changed".
"""

import json
import mmap
import os
import socket
import sys

import numpy as np

from holdfast.node.vault import userfaultfd

PAGE = 4096


def pattern(number: int, nbytes: int) -> np.ndarray:
    return (np.arange(nbytes, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(number)).astype(np.uint8)


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    sizes, offsets = ([int(part) for part in text.split(",")] for text in sys.argv[2:4])
    memory = mmap.mmap(-1, sum(sizes) + sum(offsets) + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.argv[4] == "huge":
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    arrays, pieces, at, target = [], [], 0, 0
    for size, offset in zip(sizes, offsets, strict=True):
        at += offset
        arrays.append(whole[at : at + size])
        pieces.append((arrays[-1].ctypes.data, size, target))
        at, target = at + size, target + size
    for array in arrays:
        array[:] = pattern(0, array.size)
    first = whole.ctypes.data
    pages = (first, -(-whole.size // PAGE) * PAGE)
    descriptor = userfaultfd.open_descriptor()
    userfaultfd.register(descriptor, *pages)
    socket.send_fds(link, [json.dumps({"pieces": pieces, "protected": [pages]}).encode()], [descriptor])
    # Were it kept here, writers would wait for ever for a copier that is gone.
    os.close(descriptor)
    number = 0
    while link.recv(16) == b"begun":
        number += 1
        for array in reversed(arrays):
            array[:] = pattern(number, array.size)
        link.send(b"changed")


if __name__ == "__main__":
    main()
