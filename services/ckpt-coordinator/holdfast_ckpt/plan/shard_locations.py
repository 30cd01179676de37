"""Locations of shards in the memory of nodes, as the nodes report them.

Every node reports every two seconds. A report counts at once, and is written later in batches of limited size, because
decisions wait behind every write. Reports that were not written when the process ended are repeated by the nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from holdfast.events import CopiesMeasured, ShardsFetched
from holdfast_ckpt.plan.records import HeldShards, HeldState

JobNodeRank = tuple[str, int]
"""A job and a node rank."""


class ShardLocations:
    """The newest shards of each node rank of each job, and which of them are not written yet."""

    def __init__(self, written: Iterable[HeldShards] = ()) -> None:
        self._held: defaultdict[str, dict[int, HeldShards]] = defaultdict(dict)
        self._unwritten: dict[JobNodeRank, None] = {}
        self._fetches: dict[JobNodeRank, _Fetch] = {}
        for held in written:
            self._held[held.job][held.node_rank] = held

    def of_job(self, job: str) -> Mapping[int, HeldShards]:
        """Return the shards of a job by node rank."""
        return self._held.get(job, {})

    def jobs(self) -> list[str]:
        """Return the jobs that have shards in memory."""
        return list(self._held)

    def record(self, held: HeldShards) -> None:
        """Record a report, unless a newer one is known."""
        known = self.of_job(held.job).get(held.node_rank)
        if known is None or known.age <= held.age:
            self._held[held.job][held.node_rank] = held
            self._unwritten[(held.job, held.node_rank)] = None

    def add_fetch(self, event: ShardsFetched, nproc_per_node: int) -> HeldShards | None:
        """Return the shards of a node rank once all of its ranks have fetched the same step; None until then. Each rank
        fetches for itself, and one whose bytes were damaged fetches alone.
        """
        held = _held_shards(event, nproc_per_node, HeldState.FETCHED, event.fetched_bytes)
        if held is None:
            return None
        place, fetch = (held.job, held.node_rank), _Fetch(held.node, held.age)
        known = self._fetches.get(place)
        if known is not None and (known.node, known.age) == (fetch.node, fetch.age):
            fetch = known
        elif known is not None and known.age > fetch.age:
            return None
        self._fetches[place] = fetch
        fetch.shard_bytes.update(dict.fromkeys(event.ranks, event.fetched_bytes // len(event.ranks)))
        if len(fetch.shard_bytes) < nproc_per_node:
            return None
        return msgspec.structs.replace(held, shard_bytes=sum(fetch.shard_bytes.values()))

    def forget(self, job: str) -> None:
        """Forget a finished job; its rows are removed with the next writes."""
        for place in [place for place in self._fetches if place[0] == job]:
            del self._fetches[place]
        self._unwritten.update(((job, node_rank), None) for node_rank in self._held.pop(job, {}))

    def unwritten(self, count_max: int) -> dict[JobNodeRank, HeldShards | None]:
        """Return the changes that have waited longest to be written; None stands for a row to remove."""
        waiting = islice(self._unwritten, count_max)
        return {(job, node_rank): self.of_job(job).get(node_rank) for job, node_rank in waiting}

    def mark_written(self, place: JobNodeRank) -> None:
        self._unwritten.pop(place, None)


class _Fetch:
    """A step that a node fetches from others, and the bytes that each of its ranks has of it."""

    def __init__(self, node: str, age: tuple[int, int]) -> None:
        self.node = node
        self.age = age
        self.shard_bytes: dict[int, int] = {}


def backed_up(event: CopiesMeasured, nproc_per_node: int) -> HeldShards | None:
    """Return the shards of a report; None if it lacks job, node or ranks."""
    return _held_shards(event, nproc_per_node, HeldState.BACKED_UP, event.backup_bytes)


def _held_shards(
    event: CopiesMeasured | ShardsFetched, nproc_per_node: int, state: HeldState, shard_bytes: int
) -> HeldShards | None:
    if event.job is None or event.node is None or not event.ranks:
        return None
    return HeldShards(
        job=event.job,
        node_rank=event.ranks[0] // nproc_per_node,
        node=event.node,
        keeper=event.keeper,
        step=event.step,
        generation=event.generation or 0,
        shard_bytes=shard_bytes,
        state=state,
        reported_at=event.at,
    )
