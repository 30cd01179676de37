"""A gate that daemons wait at, having loaded their modules: the embedded cluster starts them beside the servers that
they need.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

GATE_VARIABLE = "HOLDFAST_GATE"


class Gate:
    """A gate, closed until it is opened or its process ends: the kernel then frees the lock that it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def open(self) -> None:
        os.close(self._descriptor)


def wait_at_gate() -> None:
    """Wait until the gate is open that the environment names, if it names one. What this process starts has none."""
    path = os.environ.pop(GATE_VARIABLE, None)
    if path is None:
        return
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
