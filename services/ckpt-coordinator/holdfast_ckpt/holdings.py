"""What the memories of nodes hold, as they report it. Pure, but for what it remembers.

Every node reports every two seconds. A report is taken in at once and written later, with others and only so many at a
time: decisions wait behind every write. What was not written when the process ended comes again with the next report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice

from holdfast.events import CopiesMeasured, ShardsFetched
from holdfast_ckpt.state import HeldShards, HeldState

Place = tuple[str, int]
"""A job and a node rank."""


class Holdings:
    """The newest shards of each node rank of each job, and which of them are not written yet."""

    def __init__(self, written: Iterable[HeldShards] = ()) -> None:
        self._held: defaultdict[str, dict[int, HeldShards]] = defaultdict(dict)
        self._unwritten: dict[Place, None] = {}
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

    def forget(self, job: str) -> None:
        """The job is over: what is held of it is to be removed."""
        self._unwritten.update(((job, node_rank), None) for node_rank in self._held.pop(job, {}))

    def unwritten(self, count_max: int) -> dict[Place, HeldShards | None]:
        """What has waited longest to be written; None: to be removed."""
        return {(job, node_rank): self.of(job).get(node_rank) for job, node_rank in islice(self._unwritten, count_max)}

    def written(self, place: Place) -> None:
        """It is written as it stands."""
        self._unwritten.pop(place, None)


def held_shards(event: CopiesMeasured | ShardsFetched, nproc_per_node: int) -> HeldShards | None:
    """What a report says; None: nothing that could be used."""
    if event.job is None or event.node is None or not event.ranks:
        return None
    is_backup = isinstance(event, CopiesMeasured)
    return HeldShards(
        job=event.job,
        node_rank=event.ranks[0] // nproc_per_node,
        node=event.node,
        keeper=event.keeper,
        step=event.step,
        generation=event.generation or 0,
        shard_bytes=event.backup_bytes if isinstance(event, CopiesMeasured) else event.fetched_bytes,
        state=HeldState.BACKED_UP if is_backup else HeldState.FETCHED,
        reported_at=event.at,
    )
