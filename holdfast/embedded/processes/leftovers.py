"""Processes left by a killed supervisor, found by pid and start time."""

import contextlib
import os
import select
import signal
from pathlib import Path

from holdfast.embedded.layout import ChildRecord, ClusterInfo, ClusterLayout
from holdfast.embedded.processes.proctree import kill_all, node_processes
from holdfast.node.kernel import started_ticks
from holdfast.node.trees import remove_tree

SHARED_MEMORY = Path("/dev/shm")

_LEAVE_WITHIN_S = 20.0


def end_leftovers(info: ClusterInfo) -> list[str]:
    """Stop the children of a dead supervisor, in order where possible. Return the names of those found. Ranks are not
    touched: the next agent of their node adopts them. Blocks, at most 20 s for each child that ignores its signal. Call
    it only while holding the cluster's lock.
    """
    pidfds: dict[str, int] = {}
    try:
        for name, record in info.children.items():
            pidfd = _open(record)
            if pidfd is not None:
                pidfds[name] = pidfd
                _send(pidfd, signal.SIGINT if name == "postgres" else signal.SIGTERM)
                _send(pidfd, signal.SIGCONT)
        for pidfd in pidfds.values():
            if not _gone(pidfd, _LEAVE_WITHIN_S):
                _send(pidfd, signal.SIGKILL)
                _gone(pidfd, _LEAVE_WITHIN_S)
        return list(pidfds)
    finally:
        for pidfd in pidfds.values():
            os.close(pidfd)


def clear_node(layout: ClusterLayout, node: str, agent: int | None = None) -> int:
    """Kill all processes of a node and forget its zygote. Return the number of processes."""
    killed = kill_all(lambda: node_processes(layout.node(node), agent))
    layout.zygote_pid(node).unlink(missing_ok=True)
    return killed


def free_ledgers(layout: ClusterLayout, node: str) -> None:
    """Free the memory of a node's ledgers, which its agent frees only if it ends in order."""
    ledgers = layout.node(node) / "ledgers"
    target = ledgers.resolve()
    if ledgers.is_symlink() and target.parent == SHARED_MEMORY and target.name.startswith("holdfast-"):
        with contextlib.suppress(OSError):
            remove_tree(target)


def _open(record: ChildRecord) -> int | None:
    try:
        pidfd = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return None
    # Compared after opening: from now on the descriptor refers to this process.
    if started_ticks(record.pid) != record.started_ticks:
        os.close(pidfd)
        return None
    return pidfd


def _send(pidfd: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return


def _gone(pidfd: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))
