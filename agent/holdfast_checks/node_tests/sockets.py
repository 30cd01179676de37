"""Socket test of a warm-up: the store of the generation, and connections to the neighbours in the ring of nodes.

Each node listens on a port that the kernel chooses, as gloo and NCCL do, so that a wall which lets known ports through
is found. Each connection is tried from both of its ends.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence

from torch._C._distributed_c10d import PrefixStore, Store

from holdfast.symptoms import Symptom
from holdfast_checks import meeting
from holdfast_checks.result import StageResult, StageTask, failed, passed, skipped

SYMPTOM = Symptom.NETWORK_ERROR.value
SENT_BYTES = 256 * 1024
CONNECT_S = 3.0
POLL_S = 0.1
ANSWER_S = 1.0
"""Part of the limit for reporting which neighbours did not come."""


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Return a result for each neighbour. One without peers: the store of the generation cannot be reached."""
    begin()
    context, limit_s = task.context, max(task.stage.limit_s - ANSWER_S, task.stage.limit_s / 2)
    end = time.monotonic() + limit_s
    try:
        _await_store(context.store_host, context.store_port, end)
        store = PrefixStore(f"warm-up/{context.run}", meeting.connect(context, limit_s))
        with socket.create_server((context.options["address"], 0), backlog=16) as listener:
            threading.Thread(target=_serve, args=(listener,), daemon=True).start()
            port = listener.getsockname()[1]
            store.set(f"at/{context.node_rank}", f"{context.node} {context.options['address']} {port}")
            last = (context.node_rank - 1) % context.nodes
            around = dict.fromkeys(((context.node_rank + 1) % context.nodes, last))
            results = [_meet(store, rank, end) for rank in around if rank != context.node_rank]
            store.set(f"done/{context.node_rank}", "1")
            meeting.await_keys(store, [f"done/{rank}" for rank in around], end)
    except (RuntimeError, OSError) as error:
        where = f"{context.store_host}:{context.store_port}"
        return [failed(SYMPTOM, f"the store of the generation on the first node ({where}) cannot be used: {error}")]
    return results


def _await_store(host: str, port: int, end: float) -> None:
    """Return once the store can be reached; raise OSError if it cannot be.

    torch would try for longer than a warm-up may take. A node that refuses is there, and may not have come so far yet.
    """
    while True:
        left_s = max(0.1, end - time.monotonic())
        try:
            socket.create_connection((host, port), timeout=min(CONNECT_S, left_s)).close()
        except ConnectionRefusedError:
            if time.monotonic() + POLL_S >= end:
                raise
            time.sleep(POLL_S)
        else:
            return


def _meet(store: Store, rank: int, end: float) -> StageResult:
    if not meeting.await_keys(store, [f"at/{rank}"], end):
        return skipped(f"node {rank} of the job did not come")
    node, address, port = store.get(f"at/{rank}").decode().rsplit(" ", 2)
    try:
        began = time.monotonic()
        limit_s = max(0.1, min(CONNECT_S, end - began))
        with socket.create_connection((address, int(port)), timeout=limit_s) as link:
            link.sendall(bytes(SENT_BYTES))
            if not link.recv(1):
                raise ConnectionError("it did not take what was sent")
    except OSError as error:
        return failed(SYMPTOM, f"{address}:{port} cannot be reached: {error.strerror or error}", peers=(node,))
    return passed(peers=(node,), value=SENT_BYTES / (time.monotonic() - began) / 1e6, unit="MB/s")


def _serve(listener: socket.socket) -> None:
    """Take what neighbours send, until the process ends."""
    while True:
        try:
            link, _ = listener.accept()
        except OSError:
            return
        link.settimeout(CONNECT_S)
        with link, contextlib.suppress(OSError):
            left = SENT_BYTES
            while left > 0 and (taken := link.recv(min(left, 1 << 16))):
                left -= len(taken)
            if left == 0:
                link.sendall(b"\1")
