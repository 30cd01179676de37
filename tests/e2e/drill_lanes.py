"""Drills side by side on one cluster: they mostly wait, and each has its own job and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import local

from cluster import Cluster
from drill_steps import carry_out, mend
from drills import ENVIRONMENT, Drill, Outcome
from waiting import NotYet

from holdfast.embedded.servers.ports import reserve_ports

LANES = 2
NODES = 3 * LANES
"""Each job has two nodes, and a third replaces the one that is evicted. All are ready before the lane's next drill."""
SETTINGS = ENVIRONMENT | {"HOLDFAST_TIMEOUTS_NODE_LOST_S": "20", "HOLDFAST_INSPECTIONS_NETWORK_S": "5"}
"""Beside other tests a node may be silent because it is busy, and is not lost then. A link is inspected more often."""
WITHIN_S = 150.0
"""Limit of each wait in a drill: other drills and tests run at the same time."""


class Lanes:
    """Threads that carry out drills on one cluster. Each of them uses the cluster as a separate client would.

    Drills begin in the given order.
    """

    def __init__(self, directory: Path, drills: Iterable[Drill]) -> None:
        self._directory = directory
        self._own = local()
        self._clients: list[Cluster] = []
        # The process from which commands are forked dies with the thread that starts it, so no lane may start it.
        self._clients.append(Cluster(directory, SETTINGS, has_own_nursery=True))
        self._clients[0].status()
        self._pool = ThreadPoolExecutor(LANES)
        self._outcomes = {drill: self._pool.submit(self._once, drill) for drill in drills}

    def outcome(self, drill: Drill) -> Outcome:
        """Wait for a drill; raise what it raised."""
        came: Future[Outcome] = self._outcomes[drill]
        return came.result()

    def end(self) -> None:
        """Begin no other drill, and wait for those that run."""
        self._pool.shutdown(cancel_futures=True)
        for client in self._clients:
            for job in client.jobs:
                job.leave()
            client.close()

    def _once(self, drill: Drill) -> Outcome:
        cluster = self._client()
        with reserve_ports({}, None) as ports:
            port = ports.nats
        jobs_before = len(cluster.jobs)
        try:
            came = carry_out(cluster, drill, port, WITHIN_S)
        except BaseException as failure:
            try:
                for job in cluster.jobs[jobs_before:]:
                    cluster.command("stop", job.name, check=False)
                    generations = cluster.events(job, "generation_started")
                    mend(cluster, sorted({node for generation in generations for node in generation["nodes"]}))
            except (AssertionError, NotYet) as another:
                # The next drill may fail for this, but it is not why this one has.
                failure.add_note(f"and its nodes are not ready for the next drill: {another}")
            raise
        # Its other nodes are free already, and may be in the other lane's drill.
        mend(cluster, sorted({eviction["node"] for eviction in cluster.events(cluster.jobs[-1], "eviction")}))
        return came

    def _client(self) -> Cluster:
        if not hasattr(self._own, "cluster"):
            self._own.cluster = Cluster(self._directory, SETTINGS, has_own_nursery=True)
            self._clients.append(self._own.cluster)
        cluster: Cluster = self._own.cluster
        return cluster


@contextmanager
def lanes(directory: Path, drills: Iterable[Drill]) -> Iterator[Lanes]:
    """Begin all drills. At the end, also after an error, wait for those that run and cancel the others."""
    begun = Lanes(directory, drills)
    try:
        yield begun
    finally:
        begun.end()
