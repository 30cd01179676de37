"""What the memories of nodes hold, as they report it. Pure, but for what it remembers.

Every node reports every two seconds. A report is taken in at once and written later, with others and only so many at a
time: decisions wait behind every write. What was not written when the process ended comes again with the next report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from holdfast.events import CopiesMeasured, ShardsFetched
from holdfast_ckpt.plan.checkpoint_state import HeldShards, HeldState

Place = tuple[str, int]
"""A job and a node rank."""


class Holdings:
    """The newest shards of each node rank of each job, and which of them are not written yet."""

    def __init__(self, written: Iterable[HeldShards] = ()) -> None:
        self._held: defaultdict[str, dict[int, HeldShards]] = defaultdict(dict)
        self._unwritten: dict[Place, None] = {}
        self._fetches: dict[Place, _Fetch] = {}
        for held in written:
            self._held[held.job][held.node_rank] = held

    def of(self, job: str) -> Mapping[int, HeldShards]:
        """What is held of a job, by node rank."""
        return self._held.get(job, {})

    def jobs(self) -> list[str]:
        """The jobs of which something is held."""
        return list(self._held)

    def take(self, held: HeldShards) -> None:
        """Note a report, unless a newer one was heard."""
        known = self.of(held.job).get(held.node_rank)
        if known is None or known.age <= held.age:
            self._held[held.job][held.node_rank] = held
            self._unwritten[(held.job, held.node_rank)] = None

    def fetched(self, event: ShardsFetched, nproc_per_node: int) -> HeldShards | None:
        """What a node rank holds once all of its ranks have fetched the same step; None: some have not yet.

        Each rank fetches for itself, and one whose bytes were damaged fetches alone.
        """
        held = _held(event, nproc_per_node, HeldState.FETCHED, event.fetched_bytes)
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
        """The job is over: what is held of it is to be removed."""
        for place in [place for place in self._fetches if place[0] == job]:
            del self._fetches[place]
        self._unwritten.update(((job, node_rank), None) for node_rank in self._held.pop(job, {}))

    def unwritten(self, count_max: int) -> dict[Place, HeldShards | None]:
        """What has waited longest to be written; None: to be removed."""
        return {(job, node_rank): self.of(job).get(node_rank) for job, node_rank in islice(self._unwritten, count_max)}

    def written(self, place: Place) -> None:
        """It is written as it stands."""
        self._unwritten.pop(place, None)


class _Fetch:
    """A step that a node gets from others, by what its ranks have of it."""

    def __init__(self, node: str, age: tuple[int, int]) -> None:
        self.node = node
        self.age = age
        self.shard_bytes: dict[int, int] = {}


def copied(event: CopiesMeasured, nproc_per_node: int) -> HeldShards | None:
    """What a report says; None: nothing that could be used."""
    return _held(event, nproc_per_node, HeldState.BACKED_UP, event.backup_bytes)


def _held(
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
