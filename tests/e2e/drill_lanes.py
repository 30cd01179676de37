"""Drills side by side on one cluster: they mostly wait, and each has its own job, nodes and truth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import local

from cluster import Cluster
from drills import ENVIRONMENT, Drill, Outcome, carry_out, mend

from holdfast.embedded.servers.ports import reserve_ports

LANES = 2
NODES = 3 * LANES
"""Two for each job, and one that takes the place of one of them: they come back before the lane's next drill."""
WITHIN_S = 150.0
"""For each step of a drill, beside others."""


class Lanes:
    """Threads that carry out drills, each as a person of its own who uses the same cluster."""

    def __init__(self, directory: Path, drills: Iterable[Drill]) -> None:
        self._directory = directory
        self._own = local()
        self._people: list[Cluster] = []
        # The process from which commands are forked dies with the thread that starts it, so no lane is to start it.
        self._people.append(Cluster(directory, ENVIRONMENT))
        self._people[0].status()
        self._pool = ThreadPoolExecutor(LANES)
        # What takes longest is first, so that no lane ends with it alone.
        ordered = sorted(drills, key=lambda drill: not drill.is_slow)
        self._outcomes = {drill: self._pool.submit(self._once, drill) for drill in ordered}

    def outcome(self, drill: Drill) -> Outcome:
        """Wait for a drill; raise what it raised."""
        came: Future[Outcome] = self._outcomes[drill]
        return came.result()

    def end(self) -> None:
        """Begin no other drill, and wait for those that run."""
        self._pool.shutdown(cancel_futures=True)
        for person in self._people:
            for job in person.jobs:
                job.leave()
            person.close()

    def _once(self, drill: Drill) -> Outcome:
        cluster = self._person()
        with reserve_ports({}, None) as ports:
            port = ports.nats
        try:
            return carry_out(cluster, drill, port, WITHIN_S)
        except BaseException:
            cluster.command("stop", cluster.jobs[-1].name, check=False)
            raise
        finally:
            job = cluster.jobs[-1]
            struck = {event["node"] for event in cluster.events(job, "eviction")} | set(cluster.members(job))
            mend(cluster, sorted(struck))

    def _person(self) -> Cluster:
        if not hasattr(self._own, "cluster"):
            self._own.cluster = Cluster(self._directory, ENVIRONMENT)
            self._people.append(self._own.cluster)
        cluster: Cluster = self._own.cluster
        return cluster


@contextmanager
def lanes(directory: Path, drills: Iterable[Drill]) -> Iterator[Lanes]:
    """Begin all drills; whatever happens, none of them goes on behind it."""
    begun = Lanes(directory, drills)
    try:
        yield begun
    finally:
        begun.end()
