"""The nodes' meeting at the start of a run, and before tests in pairs: over the TCPStore of the generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from holdfast.engines.checks.suites import MEETING
from holdfast_checks.result import StageResult, StageTask, WorkerContext, failed, passed

SYMPTOM = "network_error"
CONNECT_MIN_S = 1.0
POLL_S = 0.02
TICK_S = 1.0
"""Interval at which a waiting node shows that it is alive."""
ANSWER_S = 2.0
"""Part of the limit reserved for reporting who came: a worker that waits to the end is killed before it reports."""
LATE_S = 2.0
"""Time from the end of a stage's limit until its node has gone on."""


class PartnerAbsent(Exception):
    """The partner did not come."""


def connect(context: WorkerContext, limit_s: float) -> TCPStore:
    """Return the run's store. Raises RuntimeError (DistNetworkError) if it is not reached in time."""
    return TCPStore(
        context.store_host,
        context.store_port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=max(limit_s, CONNECT_MIN_S)),
    )


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Announce this node, wait for its partners. The result's peers are those that are `expected`; "" for absent."""
    begin()
    limit_s = max(task.stage.limit_s - ANSWER_S, task.stage.limit_s / 2)
    context, end = task.context, time.monotonic() + limit_s
    try:
        store = connect(context, limit_s)
        store.set(_key(context.node_rank), context.node)
        keys = [_key(rank) for rank in expected(task)]
        # All nodes query the store at once: one query for all keys first, single ones only for missing keys.
        await_keys(store, keys, end)
        names = [store.get(key).decode() if store.check([key]) else "" for key in keys]
    except RuntimeError as error:
        where = f"{context.store_host}:{context.store_port}"
        return [failed(SYMPTOM, f"the store of the run on the first node ({where}) cannot be used: {error}")]
    return [passed(peers=names)]


def expected(task: StageTask) -> list[int]:
    """Return the node ranks of this node and its partners."""
    return sorted({task.context.node_rank, *(rank for pair in task.stage.pairs for rank in pair)})


def await_partner(task: StageTask, partner: int) -> Store:
    """Return a store for the two nodes of this stage, once all workers of both are there. A partner is waited for while
    it makes progress: through each stage within its limit, and while it waits itself. Raises PartnerAbsent if it makes
    none, RuntimeError if the store cannot be reached.
    """
    context, stage = task.context, task.stage
    store = connect(context, stage.limit_s)
    low, high = sorted((context.node_rank, partner))
    own = PrefixStore(f"{stage.test}/{stage.round}/{low}-{high}", store)
    own.set(f"here/{context.node_rank}/{context.worker}", "1")
    missing = [f"here/{partner}/{worker}" for worker in range(context.workers)]
    seen, ticks = "", 0
    began = give_up = time.monotonic()
    while not own.check(missing):
        now = time.monotonic()
        if (progress := _progress_of(store, partner)) != seen or ticks == 0:
            seen = progress
            give_up = now + task.limits_s[int(progress.partition(".")[0] or 0)] + LATE_S
        if now >= min(give_up, began + task.wait_s):
            raise PartnerAbsent
        if context.worker == 0 and now >= began + ticks * TICK_S:
            share_progress(store, context, f"{task.number}.{ticks}")
        ticks = 1 + int((now - began) / TICK_S)
        time.sleep(POLL_S)
    return own


def share_progress(store: Store, context: WorkerContext, progress: str) -> None:
    """Publish the number of this node's stage for its partners, with a counter while it waits there."""
    store.set(f"at/{context.node_rank}", progress)


def _progress_of(store: Store, node_rank: int) -> str:
    key = f"at/{node_rank}"
    return store.get(key).decode() if store.check([key]) else ""


def await_keys(store: Store, keys: list[str], end: float) -> bool:
    """Return True if all keys exist before the end."""
    while not store.check(keys):
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_S)
    return True


def _key(node_rank: int) -> str:
    return f"{MEETING}/{node_rank}"
