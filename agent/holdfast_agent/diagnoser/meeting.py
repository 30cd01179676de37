"""Where the nodes of a run find each other: the TCPStore of its generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from holdfast.diagnosis.suites import MEETING
from holdfast_agent.diagnoser.finding import Finding, Place, Task, failed, passed

SYMPTOM = "network_error"
CONNECT_MIN_S = 1.0
POLL_S = 0.05


class PartnerAbsent(Exception):
    """Who was to be met did not come."""


def connect(place: Place, limit_s: float) -> TCPStore:
    """The run's store. Raises RuntimeError (DistNetworkError) when it cannot be reached in time."""
    return TCPStore(
        place.store_host,
        place.store_port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=max(limit_s, CONNECT_MIN_S)),
    )


def run(task: Task, begin: Callable[[], None]) -> Sequence[Finding]:
    """Say that this node is there, and wait for the others; the names of those that came are the finding's peers.

    They are in the order of their node ranks, with "" for one that did not come.
    """
    begin()
    place, end = task.place, time.monotonic() + task.stage.limit_s
    try:
        store = connect(place, task.stage.limit_s)
        store.set(_key(place.node_rank), place.node)
        keys = [_key(rank) for rank in range(place.nodes)]
        # A store is asked by all nodes at once: once for all keys, and only then for those that are missing.
        _await(store, keys, end)
        names = [store.get(key).decode() if store.check([key]) else "" for key in keys]
    except RuntimeError as error:
        where = f"{place.store_host}:{place.store_port}"
        return [failed(SYMPTOM, f"the store of the run on the first node ({where}) cannot be used: {error}")]
    return [passed(peers=names)]


def await_partner(task: Task, partner: int) -> Store:
    """A store for the two nodes of this stage, once all workers of both are there.

    Raises:
        PartnerAbsent: the partner's did not come in time.
        RuntimeError: the store cannot be reached.
    """
    place, stage = task.place, task.stage
    end = time.monotonic() + task.wait_s
    store = connect(place, task.wait_s)
    low, high = sorted((place.node_rank, partner))
    own = PrefixStore(f"{stage.test}/{stage.round}/{low}-{high}", store)
    own.set(f"here/{place.node_rank}/{place.worker}", "1")
    missing = [f"here/{partner}/{worker}" for worker in range(place.workers)]
    if not _await(own, missing, end):
        raise PartnerAbsent
    return own


def _await(store: Store, keys: list[str], end: float) -> bool:
    """Whether all keys are there before the end."""
    while not store.check(keys):
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_S)
    return True


def _key(node_rank: int) -> str:
    return f"{MEETING}/{node_rank}"
