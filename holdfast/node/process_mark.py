"""A mark that the processes of a node inherit, by which the agent finds what ranks left behind (docs/adr/0030).

Sessions, parents, process groups and environments change; resource limits are inherited through all of it. The kernel
stopped enforcing RLIMIT_LOCKS in 2.4 and still hands it down, so its value can be a number that belongs to the node's
state directory. Only a process that lowers this limit on purpose loses the mark. It is read in /proc/PID/limits.
"""

from __future__ import annotations

import hashlib
import os
import resource
import select
import signal
import time
from pathlib import Path

from holdfast.node.kernel import started_ticks

_RLIMIT_LOCKS = 10
_TITLE = b"Max file locks"
_MAGIC = 0x2D << 56
"""No person sets a limit of this size."""

END_WITHIN_S = 10.0


def mark_of(state_dir: Path) -> int:
    """Return the mark of the node whose state lies there. Path and inode tell containers with equal paths apart."""
    stat = state_dir.stat()
    name = f"{state_dir.resolve()} {stat.st_dev} {stat.st_ino}"
    return _MAGIC | int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


def put_on_self(mark: int) -> None:
    """Mark this process, and all that descend from it from now on. Raises OSError or ValueError if a limit forbids."""
    resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))


def marked(mark: int) -> set[int]:
    """Return the pids of the processes with this mark."""
    return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _has(pid, mark)}


def end_marked(mark: int) -> int:
    """Kill all processes with this mark, and wait until they are gone; return their number. Blocks for milliseconds.

    Raises TimeoutError if one is still there after 10 s: it hangs inside the kernel.
    """
    deadline = time.monotonic() + END_WITHIN_S
    ended: set[int] = set()
    while found := marked(mark) - {os.getpid()}:
        for pid in found:
            if _kill(pid, mark, deadline):
                ended.add(pid)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {', '.join(map(str, sorted(found)))} do not die of SIGKILL")
    return len(ended)


def _kill(pid: int, mark: int, deadline: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Read again after opening: from now on the descriptor refers to this process, and the pid to no other.
        if not _has(pid, mark):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _has(pid: int, mark: int) -> bool:
    """Return True if the process has this mark and is no zombie, which only its parent can remove."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            limits = file.read()
        if not any(
            line.startswith(_TITLE) and line[len(_TITLE) :].split()[0] == b"%d" % mark for line in limits.splitlines()
        ):
            return False
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return started_ticks(pid) is not None
