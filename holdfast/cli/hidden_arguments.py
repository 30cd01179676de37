"""Values on the command line that other users of the machine must not see in the list of processes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

_ARGUMENTS_BEGIN = 45
"""The field of /proc/self/stat with the address of the arguments, counted from the state on."""


def hide_values(entries: Iterable[str]) -> None:
    """Replace the values of these NAME=VALUE arguments by asterisks in what `ps` shows of this process."""
    try:
        shown = Path("/proc/self/cmdline").read_bytes()
        begin = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_ARGUMENTS_BEGIN])
    except (OSError, ValueError, IndexError):
        return  # Without /proc no other user sees them.
    for entry in entries:
        name, equals, value = entry.partition("=")
        secret, at = value.encode(errors="surrogateescape"), 0
        whole = f"{name}{equals}".encode(errors="surrogateescape") + secret
        while secret and (at := shown.find(whole + b"\0", at)) >= 0:
            at += len(whole)
            ctypes.memset(begin + at - len(secret), ord("*"), len(secret))
