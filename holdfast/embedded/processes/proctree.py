"""The processes of one node, and the loss of a node: all its processes killed together."""

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.embedded.errors import EmbeddedError
from holdfast.node.kernel import stat_fields

NODE_VARIABLE = "HOLDFAST_NODE_DIR"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_GONE_WITHIN_S = 10.0


def node_processes(node_directory: Path, agent: int | None) -> set[int]:
    """Return the pids of a node: its agent, its zygote, all their descendants, and all other processes started there.
    Descent alone misses the children of a dead parent, so every process that was started with the node's directory in
    its environment (`HOLDFAST_NODE_DIR`) counts too.
    """
    parents: dict[int, int] = {}
    for pid in _pids():
        fields = stat_fields(pid)
        if fields is not None and fields[0] not in ("Z", "X"):
            parents[pid] = int(fields[1])
    roots = {pid for pid in parents if _born_on(pid, node_directory)}
    zygote = _zygote(node_directory / "zygote.pid")
    roots |= {pid for pid in (agent, zygote) if pid is not None and pid in parents}
    roots.discard(os.getpid())
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    frontier = list(roots)
    while frontier:
        pid = frontier.pop()
        if pid not in found:
            found.add(pid)
            frontier.extend(children.get(pid, ()))
    return found - {os.getpid()}


def kill_all(find: Callable[[], set[int]]) -> int:
    """Kill every process that `find` returns, and wait until they are gone. Return their number. A stopped process
    cannot fork, so all are stopped first, repeatedly until no new one appears. Blocks for milliseconds. Raises
    EmbeddedError if one is still there after 10 s (it hangs inside the kernel).
    """
    deadline = time.monotonic() + _GONE_WITHIN_S
    pidfds: dict[int, int] = {}
    try:
        while True:
            new = find() - pidfds.keys()
            for pid in new:
                _stop(pid, pidfds)
            if time.monotonic() > deadline or (not new and all(_is_stopped(pid) for pid in pidfds)):
                break
        for pidfd in pidfds.values():
            _signal(pidfd, signal.SIGKILL)
        for pid, pidfd in pidfds.items():
            left_ms = max(0.0, deadline - time.monotonic()) * 1000
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(left_ms):
                raise EmbeddedError(f"process {pid} does not die of SIGKILL: it hangs inside the kernel")
        return len(pidfds)
    finally:
        for pidfd in pidfds.values():
            os.close(pidfd)


def _stop(pid: int, pidfds: dict[int, int]) -> None:
    try:
        pidfds[pid] = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    _signal(pidfds[pid], signal.SIGSTOP)


def _signal(pidfd: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return


def _is_stopped(pid: int) -> bool:
    fields = stat_fields(pid)
    # D: in an uninterruptible call, from which it returns stopped; it is not awaited.
    return fields is None or fields[0] in ("T", "t", "Z", "X", "D")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _born_on(pid: int, node_directory: Path) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return os.fsencode(f"{NODE_VARIABLE}={node_directory}") in environment.split(b"\0")


def _zygote(file: Path) -> int | None:
    """Return the pid in the file, unless that process started after the file was written."""
    try:
        pid = int(file.read_text())
        written_at = file.stat().st_mtime
    except (FileNotFoundError, ValueError):
        return None
    fields = stat_fields(pid)
    if fields is None:
        return None
    started_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(fields[19]) / _TICKS_PER_S
    return pid if started_at <= written_at + 1.0 else None
