"""Buffers of files that a script never closes: the interpreter writes them as it takes itself down.

A rank ends without that (`holdfast.trainer.rank`), so they are written here. Of an open `csv` or `gzip` file the
last 8 KiB would be missing otherwise, and of a short one everything.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import sys
import threading

WRITTEN_WITHIN_S = 30.0
"""Longest wait: a thread may be inside a write that does not end, and then has the file's lock."""
WRITTEN_AFTER_FAILURE_S = 5.0
"""The same where the script failed: other ranks wait for this one, until its end is noticed."""

_OPEN: type = next(one for one in io.IOBase.__mro__ if one.__module__ == "_io")
"""The class of all files: its check asks no object for its class, which proxies answer by importing or computing."""
_BUFFERS = (io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair)
_frozen = 0
"""Number of objects that the collector did not look at when the script began: those of the zygote."""


def note_frozen() -> None:
    """Note what is frozen before the script begins: none of it is a file of the script."""
    global _frozen
    _frozen = gc.get_freeze_count()


def write_open_files(within_s: float = WRITTEN_WITHIN_S) -> None:
    """Write what open files hold, of Python and of C."""
    thread = threading.Thread(target=_write, name="holdfast-open-files", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # Some releases start no thread this late.
        _write()
    else:
        thread.join(within_s)


def _write() -> None:
    if gc.get_freeze_count() > _frozen:
        # The script has frozen its own objects, as is advised before a fork: they are in no list meanwhile.
        gc.unfreeze()
    objects = gc.get_objects()
    # A restart waits for this: each type is looked at once, not each object.
    files = {kind for kind in set(map(type, objects)) if issubclass(kind, _OPEN)}
    found = [one for one in objects if type(one) in files]
    # From the outside in: text holds characters for a compressor, and that holds bytes for a file.
    for text in (one for one in found if isinstance(one, io.TextIOWrapper)):
        _flush(text)
    for other in (one for one in found if type(one).__module__ != "_io" and not isinstance(one, io.TextIOWrapper)):
        # Its end has a trailer, or sends what is there; the interpreter closes it too. What is read may be in use by
        # a thread, which would complain, or hold its lock for long.
        with contextlib.suppress(Exception):
            if other.writable() and not any(other is stream for stream in _streams()):
                other.close()
    for buffer in (one for one in found if isinstance(one, _BUFFERS)):
        _flush(buffer)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).fflush(None)


def _streams() -> tuple[object, ...]:
    """Return what ends last, as the interpreter has it: the end of others may print."""
    return sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__


def _flush(file: io.IOBase) -> None:
    # Closed, not for writing, or a disk that is full: nothing can be done here.
    with contextlib.suppress(Exception):
        file.flush()
