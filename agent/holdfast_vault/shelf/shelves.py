"""All shelves of a node: one for each of its ranks, and one for each rank whose copies it keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast_vault.assignments import JobId, job_of
from holdfast_vault.cuts import Cut
from holdfast_vault.shelf.memory_budget import MemoryBudget
from holdfast_vault.shelf.pins import Pins
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.shelf import Shelf, ShelfContents
from holdfast_vault.shelf.wanted_steps import KEPT_MIN


class FormerShards(NamedTuple):
    """Steps of one rank from the time when the job had another number of ranks.

    Where ranks are replicas, the state of any rank is enough to restore all. It takes little memory beside what all
    ranks took. It is dropped once the present ranks keep steps, or when they need its memory.
    """

    world_size: int
    segments: tuple[Segment, ...]
    """Newest first."""

    @property
    def newest(self) -> SealedStep:
        return _contents(self.segments[0]).sealed

    def steps(self) -> tuple[SealedStep, ...]:
        return tuple(_contents(segment).sealed for segment in self.segments)

    def segment(self, sealed: SealedStep) -> tuple[Segment, SealedContents] | None:
        there = ((segment, _contents(segment)) for segment in self.segments)
        return next((found for found in there if found[1].sealed == sealed), None)


def _contents(segment: Segment) -> SealedContents:
    assert segment.contents is not None, "no shelf has it any more that could empty it"
    return segment.contents


class Shelves:
    """One job's at a time: the memory of the one before is needed by the next."""

    def __init__(
        self,
        nbytes_max: int = 0,
        steps_wanted: int = KEPT_MIN,
        left: Callable[[Collection[ShardName]], Collection[ShardName]] = lambda names: (),
        on_change: Callable[[ShardName, ShelfContents], None] = lambda name, contents: None,
        on_overwrite: Callable[[ShardName, Segment], None] = lambda name, segment: None,
    ) -> None:
        """`nbytes_max` is for all together (0: what the machine has); `steps_wanted` for each, if there is room. `left`
        returns those of the given ranks whose copies are kept elsewhere by now; `on_change` and `on_overwrite` take
        what happens to a shelf.
        """
        self._lock = threading.Lock()
        self._job: JobId | None = None
        self._shelves: dict[ShardName, Shelf] = {}
        self._steps_wanted = steps_wanted
        self._pins: Pins | None = None
        self._left = left
        self._on_change = on_change
        self._on_overwrite = on_overwrite
        self._room = MemoryBudget(nbytes_max, self._all)
        self._former: FormerShards | None = None

    def serve(self, job: JobId) -> bool:
        """Give this node's memory to a job; return True if another job had it, whose shards are then dropped."""
        with self._lock:
            if self._job == job:
                return False
            self._former = self._of_other_size(job)
            self._job = job
            self._clear()
            return True

    @property
    def former(self) -> FormerShards | None:
        """Steps here that the job kept while it had another number of ranks; None: there are none."""
        return self._former

    def drop_former(self) -> bool:
        """Free the memory of those steps; return False if there were none."""
        with self._lock:
            had, self._former = self._former, None
            return had is not None

    def of(self, name: ShardName) -> Shelf:
        """Return the shelf of a rank. One of another job than this node serves is closed from the beginning."""
        with self._lock:
            shelf = self._shelves.get(name)
            if shelf is None:
                memory_name = f"holdfast-{name.job}-{name.rank}"
                on_change, on_overwrite = partial(self._on_change, name), partial(self._on_overwrite, name)
                shelf = Shelf(memory_name, self._make, self._steps_wanted, on_change, on_overwrite)
                shelf.pin(self._pins)
                if job_of(name) == self._job:
                    self._shelves[name] = shelf
                else:
                    shelf.close()
            return shelf

    def adopt(self, name: ShardName, segments: Sequence[Segment], cut: Cut | None, sent: Sequence[SealedStep]) -> Shelf:
        """Put on a rank's shelf what the vault before had on it; return the shelf."""
        for segment in segments:
            self._room.count(segment)
        shelf = self.of(name)
        shelf.adopt(segments, cut, sent)
        return shelf

    def pin(self, pins: Pins) -> None:
        with self._lock:
            self._pins = pins
            for shelf in self._shelves.values():
                shelf.pin(pins)

    def close(self) -> None:
        with self._lock:
            self._job = None
            self._clear()

    def _make(self, name: str, nbytes: int, absent: frozenset[int], *, is_fresh: bool) -> Segment:
        try:
            return self._room.make(name, nbytes, absent, is_fresh=is_fresh)
        except OSError:
            if not self.drop_former():
                raise
            return self._room.make(name, nbytes, absent, is_fresh=is_fresh)

    def _of_other_size(self, job: JobId) -> FormerShards | None:
        """Return the newest that is here of the same job in another size."""
        if self._job is None or self._job[:2] != job[:2]:
            return None
        whole = ((self._job.world_size, tuple(shelf.whole()[:KEPT_MIN])) for shelf in self._shelves.values())
        found = [FormerShards(*each) for each in (*whole, *filter(None, [self._former])) if each[1]]
        return max(found, key=lambda each: each.newest, default=None)

    def _all(self) -> list[tuple[Shelf, bool]]:
        with self._lock:
            shelves = dict(self._shelves)
        left = self._left(shelves)
        return [(shelf, name in left) for name, shelf in shelves.items()]

    def _clear(self) -> None:
        for shelf in self._shelves.values():
            shelf.close()
        self._shelves.clear()
