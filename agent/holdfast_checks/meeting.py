"""Where the nodes of a run find each other: the TCPStore of its generation."""

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
"""How often a node that waits says so."""
ANSWER_S = 2.0
"""Of the meeting's limit, for saying who came: whoever waits until the last moment for one that does not come is killed
before it has said that the others did."""
LATE_S = 2.0
"""From the end of a stage's limit until its node has gone on."""


class PartnerAbsent(Exception):
    """Who was to be met did not come."""


def connect(context: WorkerContext, limit_s: float) -> TCPStore:
    """The run's store. Raises RuntimeError (DistNetworkError) when it cannot be reached in time."""
    return TCPStore(
        context.store_host,
        context.store_port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=max(limit_s, CONNECT_MIN_S)),
    )


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Say that this node is there, and wait for the others; the names of those that came are the finding's peers.

    They are in the order of their node ranks, with "" for one that did not come.
    """
    begin()
    limit_s = max(task.stage.limit_s - ANSWER_S, task.stage.limit_s / 2)
    context, end = task.context, time.monotonic() + limit_s
    try:
        store = connect(context, limit_s)
        store.set(_key(context.node_rank), context.node)
        keys = [_key(rank) for rank in range(context.nodes)]
        # A store is asked by all nodes at once: once for all keys, and only then for those that are missing.
        _await(store, keys, end)
        names = [store.get(key).decode() if store.check([key]) else "" for key in keys]
    except RuntimeError as error:
        where = f"{context.store_host}:{context.store_port}"
        return [failed(SYMPTOM, f"the store of the run on the first node ({where}) cannot be used: {error}")]
    return [passed(peers=names)]


def await_partner(task: StageTask, partner: int) -> Store:
    """A store for the two nodes of this stage, once all workers of both are there.

    A partner is waited for as long as it goes on: through each stage within the stage's limit, and while it waits
    itself.

    Raises:
        PartnerAbsent: it does not go on.
        RuntimeError: the store cannot be reached.
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
        if (stands := _standing(store, partner)) != seen or ticks == 0:
            seen = stands
            give_up = now + task.limits_s[int(stands.partition(".")[0] or 0)] + LATE_S
        if now >= min(give_up, began + task.wait_s):
            raise PartnerAbsent
        if context.worker == 0 and now >= began + ticks * TICK_S:
            tell_standing(store, context, f"{task.number}.{ticks}")
        ticks = 1 + int((now - began) / TICK_S)
        time.sleep(POLL_S)
    return own


def tell_standing(store: Store, context: WorkerContext, standing: str) -> None:
    """Let partners know where this node is: the number of the stage, and that it still waits there."""
    store.set(f"at/{context.node_rank}", standing)


def _standing(store: Store, node_rank: int) -> str:
    key = f"at/{node_rank}"
    return store.get(key).decode() if store.check([key]) else ""


def _await(store: Store, keys: list[str], end: float) -> bool:
    """Whether all keys are there before the end."""
    while not store.check(keys):
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_S)
    return True


def _key(node_rank: int) -> str:
    return f"{MEETING}/{node_rank}"
