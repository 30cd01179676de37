"""The arguments and variables that `ps` and /proc show of a process, for one that becomes another without `exec`."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterable, Mapping, Sequence

from holdfast.node.kernel import set_memory_map, stat_fields

_MAP = struct.Struct("@11QQIi")
"""struct prctl_mm_map: eleven addresses, then no auxiliary vector and no executable to change."""
_CODE, _DATA, _HEAP, _STACK = slice(23, 25), slice(42, 44), 44, 25
"""Fields of /proc/PID/stat, counted from the state on."""

_libc = ctypes.CDLL(None)
_libc.sbrk.restype = ctypes.c_void_p
_libc.sbrk.argtypes = (ctypes.c_ssize_t,)

_shown: list[mmap.mmap] = []
"""The kernel reads what it shows from here: it must not be freed."""


def show(arguments: Sequence[str], environment: Mapping[str, str] | Iterable[bytes]) -> None:
    """Have the kernel show these arguments and variables of this process. Raises OSError: it cannot do that (a kernel
    without CONFIG_CHECKPOINT_RESTORE, a sandbox); a process in which it worked can rely on it in its forks.
    """
    if isinstance(environment, Mapping):
        environment = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
    words = b"".join(os.fsencode(word) + b"\0" for word in arguments)
    variables = b"".join(variable + b"\0" for variable in environment)
    # Private: of shared memory the kernel shows nothing.
    memory = mmap.mmap(-1, len(words) + len(variables) or 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(words + variables)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle = begin + len(words)
    fields = [int(field) if field.isdigit() else 0 for field in stat_fields(os.getpid()) or ()]
    addresses = (*fields[_CODE], *fields[_DATA], fields[_HEAP], _libc.sbrk(0), fields[_STACK])
    _shown.append(memory)
    set_memory_map(_MAP.pack(*addresses, begin, middle, middle, middle + len(variables), 0, 0, -1))
